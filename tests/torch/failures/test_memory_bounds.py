"""Local batches that do not fit into memory: recorded, and avoided from the next start on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.agent.checkpoints.out_of_memory import MemoryBound, read_bounds
from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.failures.memory_bounds import MemoryBounds, is_out_of_memory
from tests.torch import scripts
from tests.torch.ranks import start
from tests.torch.single_replica import Numbers, Slope, Trainee, joined, propose

pytestmark = pytest.mark.torch


class Small(torch.nn.Module):
    """A network that runs out of memory with more examples than `fits`, in forward or in backward."""

    def __init__(self, fits: int, *, in_backward: bool = False) -> None:
        super().__init__()
        self.slope, self.fits, self.in_backward = Slope(), fits, in_backward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.slope(inputs)
        if len(inputs) > self.fits:
            if not self.in_backward:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            output.register_hook(_fail)
        return output


def _fail(gradient: torch.Tensor) -> None:
    raise RuntimeError("CUDA error: out of memory")


def train(
    fits: int, *, in_backward: bool = False, num_examples: int = 16, autoscale: Any = None
) -> tuple[list[int], float, pt.AdaptiveDataLoader]:
    """Train one epoch with batches of 8; return the sizes of all micro-batches, and the weight."""
    model = Small(fits, in_backward=in_backward)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbers(num_examples), batch_size=8)
    if autoscale is not None:
        loader.autoscale_batch_size(*autoscale)
    sizes = []
    for _ in pt.remaining_epochs_until(1):
        for inputs, _ in loader:
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
            sizes.append(len(inputs))
    return sizes, model.slope.weight.item(), loader


def uncaught(error: BaseException) -> None:
    """Call the hook as the interpreter does for an uncaught error."""
    sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize("in_backward", [False, True])
def test_that_training_goes_on_with_smaller_micro_batches_at_the_next_start(
    tmp_path: Path, in_backward: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for expected in (4, 2):
        with joined(tmp_path):
            with pytest.raises(RuntimeError, match="out of memory") as caught:
                train(3, in_backward=in_backward)
            uncaught(caught.value)
        assert min(bound.largest for bound in read_bounds(tmp_path)) == expected
    assert "8 examples at once did not fit into memory; the next start takes at most 4" in caplog.text
    assert "out of memory" in capsys.readouterr().err
    with joined(tmp_path):
        sizes, weight, loader = train(3, in_backward=in_backward)
        assert loader.limits == BatchLimits(
            initial_batch_size=8, max_atomic=2, accumulation=True, failed_atomic=4
        )
    # The global batch is the same, and so is the result.
    assert (sizes, weight) == ([2] * 8, -(4.5 + 12.5))


def test_that_a_loader_made_before_the_session_gets_its_bound(tmp_path: Path) -> None:
    with joined(tmp_path):
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            train(3)
        uncaught(caught.value)
    loader = pt.AdaptiveDataLoader(Numbers(16), batch_size=8)
    loader.autoscale_batch_size(32, (1, 16))
    assert loader.limits.max_atomic == 16
    with joined(tmp_path):
        assert loader.limits.max_atomic == 4


def test_that_a_bound_is_in_the_checkpoint_too_and_caps_a_batch_that_may_grow(tmp_path: Path) -> None:
    with joined(tmp_path):
        with pytest.raises(RuntimeError) as caught:
            train(4)
        uncaught(caught.value)
    with joined(tmp_path):
        train(4)
    (bound,) = (tmp_path / "memory").iterdir()
    bound.unlink()
    with joined(tmp_path):
        _, _, loader = train(4, autoscale=(64, (6, 32)))
        assert (loader.limits.min_atomic, loader.limits.max_atomic) == (4, 4)
        assert loader.limits.accumulation
        loader.autoscale_batch_size(64, (1, 3))
        assert loader.limits.max_atomic == 3


def test_that_a_local_batch_that_fitted_is_the_least_bound(tmp_path: Path) -> None:
    bounds = MemoryBounds([], smallest_device=0)
    bounds.record_fitting("a", 30)
    bounds.record_fitting("a", 24)
    assert bounds.failed("a", 32, 0) == MemoryBound(loader="a", failed=32, largest=30, device_bytes=0)
    assert bounds.failed("a", 64, 0) == MemoryBound(loader="a", failed=64, largest=32, device_bytes=0)
    # Smaller than one that fitted.
    assert bounds.failed("a", 20, 0) == MemoryBound(loader="a", failed=20, largest=10, device_bytes=0)
    assert bounds.failed("a", 1, 0) is None


def test_that_what_fitted_on_a_larger_device_says_nothing_of_a_smaller_one() -> None:
    bounds = MemoryBounds([], smallest_device=80)
    bounds.record_fitting("a", 64)
    state = bounds.state_dict()
    moved = MemoryBounds([], smallest_device=16)
    moved.load_state_dict(state)
    moved.record_fitting("a", 16)
    assert (moved.is_untried("a", 16), moved.is_untried("a", 64)) == (False, True)
    assert moved.failed("a", 64, 16) == MemoryBound(loader="a", failed=64, largest=32, device_bytes=16)
    moved.hear("a", 32)
    assert moved.heard("a") == 32
    moved.hear("a", 8)
    assert moved.heard("a") is None
    back = MemoryBounds([], smallest_device=80)
    back.load_state_dict(moved.state_dict())
    assert not back.is_untried("a", 64)
    # A checkpoint of an earlier release does not tell devices apart.
    earlier = MemoryBounds([], smallest_device=16)
    earlier.load_state_dict({"bounds": [], "proven": state["proven"]})
    assert not earlier.is_untried("a", 64)


def test_that_a_bound_applies_to_its_loader_and_to_devices_no_larger() -> None:
    bound = MemoryBound(loader="a", failed=32, largest=16, device_bytes=16 << 30)
    limits = BatchLimits(initial_batch_size=64)
    assert MemoryBounds([bound], smallest_device=16 << 30).narrowed("a", limits).max_atomic == 16
    assert MemoryBounds([bound], smallest_device=8 << 30).narrowed("a", limits).max_atomic == 16
    assert MemoryBounds([bound], smallest_device=80 << 30).narrowed("a", limits) == limits
    assert MemoryBounds([bound], smallest_device=8 << 30).narrowed("b", limits) == limits


def test_that_other_failures_and_those_outside_of_loops_write_no_bound(tmp_path: Path) -> None:
    with joined(tmp_path) as session:
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=4)
        for _ in loader:
            session.memory_watch.note(RuntimeError("a shape that does not fit"))
        # A validation after the loop.
        session.memory_watch.note(torch.cuda.OutOfMemoryError("out of memory"))
    assert read_bounds(tmp_path) == ()


def test_that_lack_of_memory_is_recognised_by_an_errors_causes() -> None:
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    wrapped = ValueError("the framework's own")
    wrapped.__cause__ = torch.cuda.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(None)


def test_that_a_guard_writes_a_bound_where_the_script_catches_errors_itself(tmp_path: Path) -> None:
    with joined(tmp_path):
        for _ in pt.AdaptiveDataLoader(Numbers(4), batch_size=4):
            try:
                with pt.memory_guard():
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            except RuntimeError:
                pass
    assert [bound.largest for bound in read_bounds(tmp_path)] == [2]


def test_that_another_excepthook_is_left_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another_hook(*_: Any) -> None: ...

    monkeypatch.setattr(sys, "excepthook", another_hook)
    with joined(tmp_path):
        assert sys.excepthook != another_hook
        sys.excepthook = another_hook
    assert sys.excepthook == another_hook


def test_that_a_checkpoint_is_written_before_a_local_batch_grows_beyond_what_is_known_to_fit(
    tmp_path: Path,
) -> None:
    with joined(tmp_path, checkpoint_interval_s="auto") as session:
        # No checkpoint falls due however slow this machine is.
        session.boundary.monotonic = lambda: 0.0
        session.boundary.last_checkpoint_s = 0.0
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(60), batch_size=4)
        loader.autoscale_batch_size(40, (1, 20))
        written = []
        for number, (inputs, _) in enumerate(loader):
            trainee.count(inputs)
            session.checkpointer.wait()
            written.append(len(list((tmp_path / "checkpoints").iterdir())))
            if number in (0, 2, 4):
                size = (8, 4, 8)[number // 2]
                propose(
                    session,
                    loader,
                    BatchChoice(global_batch_size=size, atomic_batch_size=size, accumulation_steps=0),
                )
    # Before the first step with 8, and not again.
    assert written == [0, *[1] * (len(written) - 1)]


def train_on_two(directory: str) -> list[int]:
    """Rank 1 has memory for 5 examples, of the 8 that it gets of 16."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    fits = 5 if torch.distributed.get_rank() == 1 else 100
    model = Small(fits)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    sizes = []
    try:
        for _ in pt.remaining_epochs_until(1):
            for inputs, _ in pt.AdaptiveDataLoader(Numbers(scripts.NUM_EXAMPLES), batch_size=16):
                parallel(inputs).mean().backward()
                optimizer.step()
                sizes.append(len(inputs))
    except RuntimeError as error:
        uncaught(error)
        raise
    return sizes


def test_that_all_replicas_agree_on_what_one_of_them_found_out(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    run = start(tmp_path, 2, train_on_two, str(directory))
    assert run.wait() == [1, 1], run.output()
    (bound,) = read_bounds(directory)
    assert (bound.failed, bound.largest) == (8, 4)
    sizes = start(tmp_path, 2, train_on_two, str(directory), restart_count=1).succeed()
    # Four steps of 16 in two micro-batches of 4 each, then 6 in one of 3.
    assert sizes == [[4] * 8 + [3]] * 2


class Alone:
    """The side channel of a single replica."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


def test_that_what_fits_by_its_kind_counts_from_the_next_run_on() -> None:
    limits = BatchLimits(initial_batch_size=64, max_batch_size=256, min_atomic=20)
    bounds = MemoryBounds([], smallest_device=0)
    bounds.hear("a", 16)
    assert bounds.heard("a") == 16
    assert bounds.heard("b") is None
    assert bounds.narrowed("a", limits) == limits  # the replicas must agree
    next_start = MemoryBounds([], smallest_device=0)
    next_start.load_state_dict(bounds.state_dict())
    bounds.begin_run(Alone())  # type: ignore[arg-type]
    for known in (bounds, next_start):
        assert known.narrowed("a", limits) == BatchLimits(
            initial_batch_size=64, max_batch_size=256, min_atomic=16, max_atomic=16
        )
        assert known.narrowed("b", limits) == limits
    # It is no finding of this job's.
    assert bounds.narrowed("a", limits, by_kind=False) == limits
    # A newer answer replaces it, from the next run on.
    bounds.hear("a", 24)
    assert (bounds.heard("a"), bounds.narrowed("a", limits).max_atomic) == (16, 16)
    bounds.begin_run(Alone())  # type: ignore[arg-type]
    assert (bounds.heard("a"), bounds.narrowed("a", limits).max_atomic) == (24, 24)
    bounds.hear("a", None)
    assert bounds.heard("a") == 24
    next_start.load_state_dict(bounds.state_dict())
    bounds.begin_run(Alone())  # type: ignore[arg-type]
    for known in (bounds, next_start):
        assert (known.heard("a"), known.narrowed("a", limits)) == (None, limits)


def test_that_what_has_fitted_in_this_job_refutes_its_kind() -> None:
    bounds = MemoryBounds([], smallest_device=0)
    bounds.record_fitting("a", 32)
    bounds.hear("a", 32)
    assert bounds.heard("a") == 32
    bounds.hear("a", 31)
    assert bounds.heard("a") is None
    bounds.hear("a", 40)
    bounds.hear("a", None)
    assert bounds.heard("a") is None


def test_that_limits_tell_the_least_batch_that_failed_in_this_job_only() -> None:
    limits = BatchLimits(initial_batch_size=64)
    own = [MemoryBound(loader="a", failed=failed, largest=failed // 2, device_bytes=0) for failed in (64, 40)]
    bounds = MemoryBounds(own, smallest_device=0)
    assert (bounds.narrowed("a", limits).max_atomic, bounds.narrowed("a", limits).failed_atomic) == (20, 40)
    told = MemoryBound(loader="a", failed=0, largest=10, device_bytes=0)
    assert MemoryBounds([told], smallest_device=0).narrowed("a", limits).failed_atomic is None
    both = MemoryBounds([*own, told], smallest_device=0).narrowed("a", limits)
    assert (both.max_atomic, both.failed_atomic) == (10, 40)
