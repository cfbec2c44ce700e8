"""What `pollux_slurm.submit` submits, without Slurm: options, script, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable, UsageError
from pollux_slurm.functions.job import SubmittedJob
from pollux_slurm.slurm.commands.job_limits import JobRoom, SubmitterLimits


def train(learning_rate: float) -> float:
    return learning_rate


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH", "POLLUX"))]:
        monkeypatch.delenv(name)


def test_that_a_dry_run_shows_script_and_options_and_writes_nothing(tmp_path: Path) -> None:
    text = pollux_slurm.submit(
        *(train, 0.1),
        dry_run=True,
        min_gpus=2,
        max_gpus=8,
        setup=["module load cuda"],
        time="1:00:00",
        cpus_per_gpu=4,
        contiguous=True,
        exclusive=None,
        site_thing="a b",
    )
    lines = text.splitlines()
    assert "# made by pollux_slurm.submit of tests.functions.test_submission.train" in lines
    assert "#SBATCH --gpus=2" in lines
    run = lines.index("module load cuda") + 1
    assert " run -- " in lines[run]
    assert "-m pollux_slurm.functions.replica " in lines[run]
    words = lines[-1].split()
    assert {"--time=1:00:00", "--cpus-per-gpu=4", "--contiguous", "--job-name=train"} <= set(words)
    assert "'--site-thing=a b'" in lines[-1]
    assert "exclusive" not in text
    assert ",min=2,max=8" in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_that_in_place_is_that_of_pollux_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def submitted(**options: Any) -> str:
        return str(pollux_slurm.submit(train, 0.1, dry_run=True, min_gpus=2, **options))

    assert "#   sbatch --gpus=2 --cpus-per-gpu=1" in submitted(in_place=True)
    assert ",inplace=1" in submitted(in_place=True)
    assert "inplace" not in submitted()
    assert " --in-place -- " in submitted(in_place=True, cluster="local")
    assert "--in-place" not in submitted(cluster="local")
    with pytest.raises(UsageError, match="--in-place: a job with --total-time"):
        submitted(in_place=True, time="1:00:00", total_time="1-0")
    settings = Path("pollux.toml")
    settings.write_text("[moves]\nin_place = true\n")
    monkeypatch.setenv("POLLUX_CONFIG", str(settings))
    assert "inplace=1" in submitted()
    assert "inplace" not in submitted(in_place=False)


def tune(layers: int, *, seed: int = 0, output_dir: object = None, network: object = None) -> None:
    raise NotImplementedError


class Network:
    """An object whose text is its address."""


class Trainer:
    """A training whose settings are its object's."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.itself = self

    def __call__(self) -> None:
        raise NotImplementedError

    def train(self, lr: float = 0.1) -> None:
        raise NotImplementedError


class Tracker:
    """An object that has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("not connected")


def training_of(layers: int) -> Any:
    def run() -> int:
        return layers

    return run


def kind(function: Any, *args: Any, **options: Any) -> str:
    text = str(pollux_slurm.submit(function, *args, dry_run=True, min_gpus=2, **options))
    return text.partition(",kind=")[2].partition(",")[0].split()[0] if ",kind=" in text else ""


@pytest.mark.parametrize(
    "call",
    [
        lambda layers: partial(tune, layers),
        lambda layers: partial(partial(tune, layers), seed=layers),
        lambda layers: Trainer(layers).train,
        lambda layers: partial(Trainer(layers).train, lr=0.2),
        Trainer,
        training_of,
        lambda layers: lambda: tune(layers),
        lambda layers: (lambda: tune(12)) if layers == 12 else (lambda: tune(48)),
        lambda layers: partial(tune, 1, network=[Network(), {"a": Trainer(layers)}]),
        lambda layers: partial(tune, 1, network=train if layers == 12 else tune),
        lambda layers: partial(max, layers),
    ],
)
def test_that_a_call_of_other_values_is_another_kind(call: Any) -> None:
    assert kind(call(12)) == kind(call(12))
    assert kind(call(12)) != kind(call(48))


def test_that_functions_of_two_scripts_are_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`__main__` is the name of each module that is started as a script."""
    monkeypatch.setattr(tune, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/ada/bert.py", raising=False)
    first = kind(tune, 12)
    assert kind(tune, 12) == first
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/ada/resnet.py", raising=False)
    assert kind(tune, 12) != first


def test_that_a_kind_is_the_same_in_each_process() -> None:
    """The order of a set is another in each, unless the seed of hashes is set."""
    script = """if True:
        import re, pollux_slurm
        from functools import partial
        def tune(layers, names): ...
        call = partial(tune, names=[{"a", "b", "c", "d", "e", "f"}, {"x": frozenset("abcdef")}])
        text = pollux_slurm.submit(call, 12, dry_run=True, min_gpus=2)
        print(re.search(",kind=([0-9a-f]+)", text)[1])
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


def test_that_an_argument_without_a_text_prevents_no_submission() -> None:
    assert kind(partial(tune, network=Tracker()), 12) != kind(tune, 12)


def test_that_a_function_and_its_arguments_are_a_kind() -> None:
    first = kind(tune, 12)
    assert len(first) == 16
    assert kind(tune, 12) == first
    assert kind(partial(tune, layers=12)) == first
    assert kind(partial(partial(tune, seed=3), output_dir="/a"), 12) == first
    assert kind(tune, 48) != first
    assert kind(train, 12) != first
    assert kind(partial(tune, network=Network()), 12) == kind(partial(tune, network=Network()), 12) != first
    assert kind(tune, 12, chdir="elsewhere") != first
    assert kind(tune, 12, kind=None) == first
    assert kind(tune, 12, kind="mine") == "mine"
    assert kind(tune, 12, kind="") == ""


def test_that_it_says_where_limits_on_jobs_have_no_room_for_wings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLLUX_STORE_URL", "sqlite:////shared/pollux.db")
    limits = SubmitterLimits(room=JobRoom(2, "MaxJobs=2 of ada in account lab"))
    monkeypatch.setattr("pollux_slurm.launch.submit.room_for_wings.read_limits", lambda *_: limits)
    assert "inplace" not in pollux_slurm.submit(train, 0.1, dry_run=True, in_place=True)
    assert capsys.readouterr().err == (
        "pollux: the job moves by requeue, not in place: it takes 3 jobs at least, and MaxJobs=2 of ada in "
        "account lab leaves 2\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": "gpu"}, "p=: write the long name of sbatch's option -p"),
        ({"wrap": "true"}, "wrap=: not for a submitted function"),
        ({"array": "0-3"}, "tasks of an array cannot be adaptive"),
        ({"min_gpu": 2}, "do you mean --min-gpus"),
        ({"min_gpus": 3, "max_gpus": 2}, "--min-gpus 3 is above --max-gpus 2"),
        ({"cluster": "local", "time": "1:00:00"}, "time: only for Slurm"),
        ({"cluster": "local", "min_gpus": 3, "max_gpus": 2}, "min_gpus=3 is above max_gpus=2"),
        ({"cluster": "debug"}, "cluster is 'slurm' or 'local', not 'debug'"),
    ],
)
def test_that_what_cannot_be_submitted_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pollux_slurm.submit(train, 0.1, **options)
    assert list(tmp_path.iterdir()) == []


def test_that_a_call_instead_of_a_function_and_arguments_that_cannot_be_pickled_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="takes a function and its arguments, not a float"):
        pollux_slurm.submit(train(0.1))  # type: ignore[arg-type]
    with (tmp_path / "file").open("w") as file, pytest.raises(UsageError, match="cannot be pickled"):
        pollux_slurm.submit(train, file, cluster="local")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_that_setup_may_be_one_text() -> None:
    lines = "module load cuda\nulimit -c 0"
    assert f"\n{lines}\n" in pollux_slurm.submit(train, 0.1, dry_run=True, setup=lines)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    """Put a command before those of Slurm."""
    command = folder / "bin" / name
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)


def test_that_a_preempted_job_that_is_not_requeued_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "squeue", "echo 7 PREEMPTED")
    log = tmp_path / "log"
    job: SubmittedJob[Any] = SubmittedJob(
        job_id="7", folder=tmp_path, stdout_file=log, stderr_file=log, script=""
    )
    assert job.wait(timeout_s=0) == "PREEMPTED"


def test_that_a_refusal_by_sbatch_ends_with_what_may_have_been_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "sbatch", "echo \"sbatch: unrecognized option '$1'\" >&2; exit 1")
    with pytest.raises(SlurmCommandError, match=r"partiton.*Do you mean partition= instead of partiton="):
        pollux_slurm.submit(train, 0.1, partiton="gpu")
    with pytest.raises(SlurmCommandError, match=r"unrecognized option '--time=1'$"):
        pollux_slurm.submit(train, 0.1, time=1)


def test_that_an_option_that_may_be_meant_for_the_function_is_refused_until_that_has_its_value() -> None:
    def save(output: str = "model.pt", checkpoint_dir: str = "") -> None: ...

    with pytest.raises(UsageError, match=r"learning_rate=.*functools.partial\(function, learning_rate=...\)"):
        pollux_slurm.submit(train, learning_rate=0.1)
    for options in (
        {"output": "best.pt"},
        {"checkpoint_dir": "job"},
        {"cluster": "local", "output": "best.pt"},
    ):
        with pytest.raises(UsageError, match="may be an argument of the function or an option of the job"):
            pollux_slurm.submit(save, **options)  # type: ignore[call-overload]
    for function, args in ((save, ("best.pt",)), (partial(save, output="best.pt"), ())):
        text = pollux_slurm.submit(function, *args, output="log", dry_run=True)
        assert " --output=log " in text


def test_that_without_slurm_the_error_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmUnavailable, match="no sbatch on PATH"):
        pollux_slurm.submit(train, 0.1)
    assert list(tmp_path.iterdir()) == []


def test_that_a_function_without_a_name_has_a_job_name() -> None:
    text = pollux_slurm.submit(partial(train, learning_rate=0.1), dry_run=True)
    assert "--job-name=partial " in text
    assert "--job-name=lambda " in pollux_slurm.submit(lambda: 1, dry_run=True)


def test_that_importing_the_package_imports_nothing_of_submit() -> None:
    code = "import pollux_slurm, sys; print([m for m in sys.modules if 'functions' in m or 'jinja' in m])"
    code += "; print('submit' in dir(pollux_slurm), hasattr(pollux_slurm, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nTrue False\n"
