"""AdaptDL's tutorials run after their imports are renamed: on one replica, on two, and moved."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.pages import tutorials
from tests.torch.ranks import run_program, run_ranks, start
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch


PAGE = Path(__file__).resolve().parents[3] / "docs" / "adaptdl.md"


def run(directory: Path, num_ranks: int, script: Callable[..., Any], *args: Any) -> list[Any]:
    directory.mkdir(exist_ok=True)
    return run_ranks(directory, num_ranks, script, *args, env={"POLLUX_CHECKPOINT_DIR": str(directory)})


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_that_the_steps_of_the_digits_tutorial_train_the_same_on_two_replicas(
    tmp_path: Path, step: int
) -> None:
    (alone,) = run(tmp_path / "a", 1, tutorials.digits, step)
    both = run(tmp_path / "b", 2, tutorials.digits, step)
    for result in both:
        assert result["state"] == alone["state"]
        torch.testing.assert_close(result["weights"], alone["weights"])
    # Before the last step each replica returns its own part.
    numbers = [result["tested"]["number"] for result in both]
    assert numbers == [tutorials.NUM_TESTED] * 2 if step == 5 else sum(numbers) >= tutorials.NUM_TESTED
    assert alone["tested"]["number"] == tutorials.NUM_TESTED


def test_that_loaders_made_before_the_group_go_on_where_they_were(tmp_path: Path) -> None:
    (whole,) = run(tmp_path / "whole", 1, tutorials.digits, 5)
    env = {"POLLUX_CHECKPOINT_DIR": str(tmp_path / "moved")}
    stopped = start(tmp_path, 2, tutorials.digits, 5, 1, env=env)
    assert stopped.wait() == [143, 143], stopped.output()
    (moved,) = run_ranks(tmp_path, 1, tutorials.digits, 5, env=env, restart_count=1)
    torch.testing.assert_close(moved["weights"], whole["weights"])
    assert moved["tested"] == pytest.approx(whole["tested"])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_that_two_adversaries_train_by_the_same_loader(tmp_path: Path, num_ranks: int) -> None:
    results = run(tmp_path, num_ranks, tutorials.adversaries)
    for one in results:
        torch.testing.assert_close(one["weights"], results[0]["weights"])
        assert one["batches"] == results[0]["batches"] > 0
    assert all(value.isfinite().all() for value in results[0]["weights"].values())


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_that_ratings_are_learned_and_the_best_model_is_saved_whole(tmp_path: Path, num_ranks: int) -> None:
    results = run(tmp_path, num_ranks, tutorials.ratings)
    assert [one["replicas"] for one in results] == [num_ranks] * num_ranks
    torch.testing.assert_close(results[0]["weights"], results[-1]["weights"])
    assert results[0]["written"]["AdaptDL/Model/Gain"] >= 1.0
    # It is read where there is no group.
    saved = torch.load(tmp_path / "share" / "taste.pt", weights_only=False)
    user = torch.arange(24)
    miss = -saved(user, (3 * user) % 12).sum().item()
    assert miss == pytest.approx(results[0]["best"], rel=1e-4)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_that_an_average_of_the_weights_and_copies_of_the_model_are_its_own(
    tmp_path: Path, num_ranks: int
) -> None:
    results = run(tmp_path, num_ranks, tutorials.averaged)
    for one in results:
        torch.testing.assert_close(one["average"], one["expected"])
        assert one["copied"]
    kept, trained, average = results[0]["outputs"]
    assert torch.equal(kept, trained)
    assert not torch.equal(kept, average)


def test_that_a_copy_takes_no_part_in_training_and_is_saved_with_its_mode() -> None:
    with joined(backend="gloo"):
        trainee = Trainee()
        trainee.parallel.eval()
        buffer = io.BytesIO()
        torch.save(trainee.parallel, buffer)
        trainee.parallel.train()
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=2)
        for inputs, _ in loader:
            trainee.optimizer.zero_grad()
            copied = copy.deepcopy(trainee.parallel)
            copied(inputs).mean().backward()
            assert trainee.model.weight.grad is None
            trainee.step(inputs)
            assert copied.module.weight.item() != trainee.weight
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=False)
        assert isinstance(saved.module, Slope)
        assert not saved.training
        assert not saved.module.training
        assert saved.module.weight.item() == 0.0


def test_that_a_name_in_the_scaler_s_place_is_refused() -> None:
    with joined(backend="gloo"), pytest.raises(UsageError, match="name='critic'"):
        Trainee(mp_scaler="critic")


@pytest.mark.parametrize("kind", [float, np.int64, np.float32])
def test_that_sizes_may_be_any_kind_of_whole_number(kind: Callable[[int], Any]) -> None:
    with joined(backend="gloo"):
        loader = pt.AdaptiveDataLoader(Numbers(64), batch_size=kind(8))
        loader.autoscale_batch_size(kind(32), local_bsz_bounds=(kind(2), kind(8)))
        assert [len(places) for _, places in loader] == [8] * 8
        limits = loader.limits
        sizes = [loader.batch_size, limits.max_batch_size, limits.min_atomic, limits.max_atomic]
        assert [type(size) for size in sizes] == [int] * 4


@pytest.mark.parametrize("size", [0, 8.5, "8", True, float("nan"), float("inf"), [8]])
def test_that_other_sizes_are_refused_by_name(size: Any) -> None:
    with joined(backend="gloo"):
        with pytest.raises(UsageError, match="batch_size must be a whole number from 1, not"):
            pt.AdaptiveDataLoader(Numbers(8), batch_size=size)
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        with pytest.raises(UsageError, match="max_batch_size must be a whole number from 1, not"):
            loader.autoscale_batch_size(size)
        with pytest.raises(UsageError, match="each of local_bsz_bounds must be a whole number from 1, not"):
            loader.autoscale_batch_size(8, local_bsz_bounds=(None, size))


def test_that_a_loader_made_before_the_group_is_of_use_only_after() -> None:
    first = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    second = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    assert repr(first) == "AdaptiveDataLoader before init_process_group() (Numbers, batch_size=4)"
    assert len(first) == 2
    for use in (iter, lambda loader: loader.current_batch_size):
        with pytest.raises(UsageError, match=r"call pollux_slurm\.torch\.init_process_group"):
            list(use(first))  # type: ignore[operator]
    with joined(backend="gloo"):
        third = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        assert [loader.name for loader in (first, second, third)] == ["loader-0", "loader-1", "loader-2"]
        assert [len(places) for _, places in first] == [4, 4]


@pytest.mark.parametrize("make", [pt.Accumulator, Trainee, lambda: pt.State("own")])
def test_that_objects_made_before_the_session_are_refused_with_what_to_call(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="only AdaptiveDataLoaders may be made earlier"):
        make()


def test_that_the_imports_of_the_page_spell_what_scripts_do(tmp_path: Path) -> None:
    imports = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    uses = (
        "print(adaptdl.torch.Accumulator is adl.Accumulator, adaptdl.torch.scaling_rules.AdaScale is "
        "adl.AdaScale, adaptdl.env.num_replicas(), adl.env is adaptdl.env)"
    )
    code, output = run_program(tmp_path, imports + uses)
    assert (code, output.splitlines()[1:]) == (0, ["True True 1 True"])
