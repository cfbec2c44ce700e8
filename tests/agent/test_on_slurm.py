"""Submission and launch on a real Slurm of two nodes with four fake GPUs each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pollux_slurm.agent.delivery import signal_step
from pollux_slurm.agent.submission import submit
from pollux_slurm.agent.submission_plan import plan_submission
from pollux_slurm.agent.token import read_token, token_sha256
from pollux_slurm.config import Config, SlurmConfig
from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.model import Allocation, JobShape, JobState, SlurmJob
from pollux_slurm.slurm import SlurmClient, connect
from pollux_slurm.slurm.batch_script import parse_script
from pollux_slurm.slurm.runner import CommandRunner
from pollux_slurm.slurm.sbatch_options import parse_words
from pollux_slurm.slurm.sbatch_request import SbatchRequest
from pollux_slurm.slurm.terms import decode_comment, user_part
from tests.waiting import wait_until

# Each rank leaves what it was told in RUN.RANK.json, then does as its second word says.
RANK = """
import json, os, signal, sys, time
def leave(name, text):
    with open(name + ".new", "w") as file: file.write(text)
    os.rename(name + ".new", name)
run = os.environ["POLLUX_RESTART_COUNT"]
def save(*_):
    time.sleep(0.5)  # a checkpoint takes its time
    leave(f"{run}.{os.environ['RANK']}.saved", "")
    sys.exit(0 if sys.argv[1] == "hold" else 99)
signal.signal(signal.SIGTERM, save)
leave(f"{run}.{os.environ['RANK']}.json", json.dumps({**os.environ, "PID": str(os.getpid())}))
if sys.argv[1] == "fail":
    if os.environ["RANK"] == sys.argv[2]:
        while len([name for name in os.listdir() if name.endswith(".json")]) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.05)
        sys.exit(int(sys.argv[3]))
    time.sleep(600)
while sys.argv[1] == "hold" and not os.path.exists("go"):
    time.sleep(0.05)
"""
BODY = f'#!/bin/bash\n{sys.executable} -m pollux_slurm run -- {sys.executable} -S rank.py "$@"\n'


@dataclass
class Place:
    """A working directory on the cluster, and the jobs submitted from it."""

    folder: Path
    environ: dict[str, str]
    slurm: SlurmClient
    jobs: list[str] = field(default_factory=list)

    def run(self, *argv: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def pollux_sbatch(
        self, *words: str, environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = self.run(sys.executable, "-m", "pollux_slurm", "sbatch", *words, environ=environ)
        self.jobs += re.findall(r"^(?:Submitted batch job )?([0-9]+)$", done.stdout, re.MULTILINE)
        return done

    def submit(self, *words: str, body: str = BODY, environ: dict[str, str] | None = None) -> str:
        (self.folder / "train.sbatch").write_text(body)
        done = self.pollux_sbatch("-o", "log", *words, environ=environ)
        assert done.returncode == 0, done.stderr
        return self.jobs[-1]

    def job(self, job_id: str) -> SlurmJob:
        job = self.slurm.read_job(job_id)
        assert job is not None
        return job

    def wait(self, job_id: str, state: JobState, *, timeout_s: float = 45) -> SlurmJob:
        wait_until(
            lambda: self.job(job_id).state is state,
            timeout_s=timeout_s,
            what=f"job {job_id} to be {state.value}; its log: {self.log()}",
        )
        return self.job(job_id)

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else "none"

    def ranks(self, run: int, count: int) -> list[dict[str, str]]:
        """Wait for all ranks of a run, and return what they were told, in rank order."""
        files = [self.folder / f"{run}.{rank}.json" for rank in range(count)]
        wait_until(
            lambda: all(file.exists() for file in files),
            timeout_s=120,
            what=f"{count} ranks; log: {self.log()}",
        )
        assert len(list(self.folder.glob(f"{run}.*.json"))) == count
        return [json.loads(file.read_text()) for file in files]

    def saved(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.saved"))


def a_place(folder: Path, env: dict[str, str]) -> Place:
    folder.mkdir(exist_ok=True)
    (folder / "rank.py").write_text(RANK)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "POLLUX", "CUDA"))}
    environ = {**plain, **env}
    return Place(folder=folder, environ=environ, slurm=connect(SlurmConfig(), environ))


@pytest.fixture
def place(two_node_sandbox: dict[str, str], tmp_path: Path) -> Iterator[Place]:
    made = a_place(tmp_path / "it's a place", two_node_sandbox)
    yield made
    for job_id in made.jobs:
        made.slurm.cancel(job_id)


@pytest.fixture(scope="module")
def job_at_its_limit(
    two_node_sandbox: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, str]]:
    """A job with a limit of one minute, begun before the other tests, so that its minute passes meanwhile.

    It takes a GPU of n1, and leaves n0 to them.
    """
    made = a_place(tmp_path_factory.mktemp("limit"), two_node_sandbox)
    job_id = made.submit("--time=1", "--nodelist=n1", "train.sbatch", "hold")
    yield made, job_id
    made.slurm.cancel(job_id)


def test_that_a_job_is_submitted_as_sbatch_does_and_tells_its_terms(
    place: Place, job_at_its_limit: tuple[Place, str]
) -> None:
    (place.folder / "train.sbatch").write_text(BODY)
    done = place.pollux_sbatch(
        "--comment", "ask Ada\nfirst", "--max-gpus=4", "-o", "log", "train.sbatch", "pass"
    )
    assert re.fullmatch(r"Submitted batch job [0-9]+\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    (told,) = place.ranks(0, 1)
    job = place.wait(place.jobs[-1], JobState.COMPLETED)
    terms = decode_comment(job.comment)
    assert terms is not None
    assert (terms.min_gpus, terms.max_gpus) == (1, 4)
    assert user_part(job.comment) == "ask Ada\nfirst"
    assert terms.token_sha256 == token_sha256(read_token(Path(told["POLLUX_TOKEN_FILE"])))
    assert Path(told["POLLUX_CHECKPOINT_DIR"]).parent == place.folder / "pollux-checkpoints"
    assert (job.name, job.requested_gpus, job.cpus_per_gpu, job.held) == ("train.sbatch", 1, 1, False)
    assert (told["WORLD_SIZE"], told["POLLUX_JOB_ID"]) == ("1", job.job_id)
    assert told["CUDA_VISIBLE_DEVICES"].isdecimal()


def test_that_uneven_nodes_and_a_new_shape_after_a_requeue_give_the_right_ranks(place: Place) -> None:
    job_id = place.submit("--gpus=5", "--nodes=2", "train.sbatch", "hold")
    first = place.ranks(0, 5)
    assert [told["LOCAL_RANK"] for told in first] == ["0", "1", "2", "3", "0"]
    assert [told["SLURMD_NODENAME"] for told in first] == ["n0"] * 4 + ["n1"]
    assert {told["POLLUX_GPUS_PER_NODE"] for told in first} == {"4,1"}
    assert {told["MASTER_PORT"] for told in first} == {first[0]["MASTER_PORT"]}
    assert [len(told["CUDA_VISIBLE_DEVICES"].split(",")) for told in first] == [4, 4, 4, 4, 1]

    place.slurm.requeue_hold(job_id)
    place.wait(job_id, JobState.PENDING)
    assert place.saved() == [f"0.{rank}.saved" for rank in range(5)]
    place.slurm.reshape(job_id, JobShape.of(Allocation.of({"n0": 1, "n1": 2})))
    place.slurm.release(job_id)
    second = place.ranks(1, 3)
    # Which of the two nodes gives two is Slurm's choice (22.05); what counts is that we are told the truth.
    split = [[told["SLURMD_NODENAME"] for told in second].count(node) for node in ("n0", "n1")]
    assert sorted(split) == [1, 2]
    assert [told["SLURMD_NODENAME"] for told in second] == ["n0"] * split[0] + ["n1"] * split[1]
    assert [int(told["LOCAL_RANK"]) for told in second] == [*range(split[0]), *range(split[1])]
    assert {told["POLLUX_GPUS_PER_NODE"] for told in second} == {f"{split[0]},{split[1]}"}
    assert {(told["WORLD_SIZE"], told["POLLUX_RESTART_COUNT"]) for told in second} == {("3", "1")}
    assert second[0]["POLLUX_TOKEN_FILE"] == first[0]["POLLUX_TOKEN_FILE"]
    assert second[0]["POLLUX_CHECKPOINT_DIR"] == first[0]["POLLUX_CHECKPOINT_DIR"]

    place.slurm.requeue_hold(job_id)
    place.wait(job_id, JobState.PENDING)
    place.slurm.reshape(job_id, JobShape.of(Allocation.of({"n1": 2})))
    place.slurm.release(job_id)
    third = place.ranks(2, 2)
    assert {(told["WORLD_SIZE"], told["MASTER_ADDR"]) for told in third} == {("2", "127.0.0.1")}
    (place.folder / "go").touch()
    assert place.wait(job_id, JobState.COMPLETED).exit_code == 0


@pytest.mark.parametrize(("rank", "code"), [("0", 3), ("4", 7)])
def test_that_the_failing_ranks_code_is_the_jobs(place: Place, rank: str, code: int) -> None:
    job_id = place.submit("--gpus=5", "--nodes=2", "train.sbatch", "fail", rank, str(code))
    place.ranks(0, 5)
    assert place.wait(job_id, JobState.FAILED).exit_code == code
    left = list((place.folder / "pollux-checkpoints").rglob("*.exit"))
    assert left == []


# Rank 4, on the other node, has no memory for what it got, once; the others wait for it.
HUNGRY = """#!/bin/bash
PYTHON -m pollux_slurm run --kill-after=1 -- PYTHON -c '
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["POLLUX_CHECKPOINT_DIR"], "memory")
known = folder.exists()
rank = os.environ["RANK"]
os.write(1, f"rank {rank} {known}\\n".encode())  # one write: no other rank comes between
if known:
    sys.exit(0)
pathlib.Path(folder.parent, "seen-" + rank).touch()
if rank == "4":
    deadline = time.monotonic() + 60
    while len(list(folder.parent.glob("seen-*"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)  # all have looked before this one fails
    folder.mkdir()
    (folder / "000000-000004.json").write_text("{}")
    sys.exit(1)
time.sleep(600)
'
"""


def test_that_a_rank_without_memory_has_all_ranks_started_again_in_the_same_job(place: Place) -> None:
    body = HUNGRY.replace("PYTHON", sys.executable)
    job_id = place.submit("--gpus=5", "--nodes=2", "train.sbatch", body=body)
    assert place.wait(job_id, JobState.COMPLETED).exit_code == 0
    told = [line for line in place.log().splitlines() if line.startswith("rank")]
    assert sorted(line for line in told if "True" in line) == [f"rank {rank} True" for rank in range(5)]
    assert "rank 4 False" in told
    assert "starting again with smaller passes" in place.log()


def test_that_what_a_submission_says_of_tasks_and_variables_does_not_bind_the_step(place: Place) -> None:
    # Left in its environment, SLURM_GPUS_PER_TASK would give the one task of each node a single GPU.
    options = ["--gpus-per-task=1", "--ntasks=3", "--mem-per-gpu=100", "--export=NONE"]
    job_id = place.submit(*options, "train.sbatch", "pass")
    told = place.ranks(0, 3)
    assert {env["WORLD_SIZE"] for env in told} == {"3"}
    assert {env["POLLUX_JOB_ID"] for env in told} == {job_id}
    assert place.wait(job_id, JobState.COMPLETED).exit_code == 0


def test_that_plain_sbatch_makes_a_job_adaptive_at_its_first_start(place: Place) -> None:
    (place.folder / "train.sbatch").write_text(BODY.replace("run --", "run --min-gpus 1 --max-gpus 6 --"))
    words = ["sbatch", "-o", "log", "--gpus=2", "--comment=mine", "--parsable", "train.sbatch", "hold"]
    done = place.run(*words, environ={"POLLUX_STORE_URL": f"sqlite:///{place.folder}/pollux.db"})
    job_id = done.stdout.strip()
    place.jobs.append(job_id)
    first = place.ranks(0, 2)
    comment = place.job(job_id).comment
    terms = decode_comment(comment)
    assert terms is not None
    assert (user_part(comment), terms.min_gpus, terms.max_gpus) == ("mine", 1, 6)
    assert terms.token_sha256 == token_sha256(read_token(Path(first[0]["POLLUX_TOKEN_FILE"])))

    place.slurm.requeue_hold(job_id)
    place.wait(job_id, JobState.PENDING)
    place.slurm.reshape(job_id, JobShape.of(Allocation.of({"n0": 1, "n1": 2})))
    place.slurm.release(job_id)
    second = place.ranks(1, 3)
    assert {told["POLLUX_TOKEN_FILE"] for told in second} == {first[0]["POLLUX_TOKEN_FILE"]}
    assert place.job(job_id).comment == comment
    (place.folder / "go").touch()
    place.wait(job_id, JobState.COMPLETED)


def test_that_plain_sbatch_without_a_store_or_gpus_trains_at_its_fixed_size(place: Place) -> None:
    (place.folder / "train.sbatch").write_text(BODY)
    # What a job inherits from the adaptive job that submitted it must not pass for its own.
    inherited = {"POLLUX_JOB_ID": "1", "POLLUX_TOKEN_FILE": "/none", "POLLUX_CHECKPOINT_DIR": "/none"}
    store = {"POLLUX_STORE_URL": f"sqlite:///{place.folder}/pollux.db"}
    for words, environ in ((["--gpus=1"], inherited), (["-n1"], {**inherited, **store})):
        words = ["sbatch", "-o", "log", "--wait", "--parsable", *words, "train.sbatch", "pass"]
        done = place.run(*words, environ=environ)
        job_id = done.stdout.strip()
        assert done.returncode == 0, place.log()
        (told,) = place.ranks(0, 1)
        assert "POLLUX_TOKEN_FILE" not in told
        assert told["POLLUX_CHECKPOINT_DIR"] == str(place.folder / "pollux-checkpoints" / f"job-{job_id}")
        assert place.job(job_id).comment == ""
        (place.folder / "0.0.json").unlink()
    assert f"pollux: job {job_id} trains at its fixed size: job {job_id} holds no GPUs" in place.log()


def test_that_sigterm_to_the_batch_scripts_launcher_lets_the_ranks_save(place: Place) -> None:
    # srun itself would kill them at once.
    wait_for_ranks = "while [ ! -e 0.0.json ] || [ ! -e 0.1.json ]; do sleep 0.1; done"
    command = BODY.splitlines()[1]
    body = f"#!/bin/bash\n{command} &\n{wait_for_ranks}\nkill -TERM $!\nwait $!\n"
    job_id = place.submit("--gpus=2", "train.sbatch", "hold", body=body)
    assert place.wait(job_id, JobState.COMPLETED).exit_code == 0
    assert place.saved() == ["0.0.saved", "0.1.saved"]


def test_that_a_job_started_without_its_gpus_goes_back_into_the_queue(place: Place) -> None:
    """As after a restart of slurmctld: the environment tells of GPUs that slurmctld has not given."""
    body = BODY.replace("\n", "\nexport SLURM_GPUS_ON_NODE=3\n", 1)
    job_id = place.submit("--gpus=1", "--nodes=1", "train.sbatch", "end", body=body)
    wait_until(
        lambda: (place.job(job_id).state, place.job(job_id).restart_count) == (JobState.PENDING, 1),
        timeout_s=120,
        what=f"the job to be back in the queue; its log: {place.log()}",
    )
    said = f"Slurm has started job {job_id} with 1 of its 3 GPUs: it goes back into the queue"
    assert said in place.log()


def test_that_a_leftover_of_an_earlier_run_signals_nobody(place: Place) -> None:
    """Its node was given up and has come back: slurmd ends what is left there, the job trains elsewhere."""
    job_id = place.submit("--max-gpus=2", "train.sbatch", "hold")
    place.ranks(0, 1)
    place.slurm.requeue_hold(job_id)
    place.wait(job_id, JobState.PENDING)
    place.slurm.reshape(job_id, JobShape(num_gpus=2, cpus_per_gpu=1))
    place.slurm.release(job_id)
    place.ranks(1, 2)
    before = place.saved()
    runner = CommandRunner(environ=place.environ)
    assert not signal_step(signal.SIGTERM, job_id=job_id, restart_count=0, runner=runner)
    assert place.job(job_id).state is JobState.RUNNING
    assert place.saved() == before
    assert signal_step(signal.SIGTERM, job_id=job_id, restart_count=1, runner=runner)
    wait_until(lambda: {"1.0.saved", "1.1.saved"} <= set(place.saved()), timeout_s=120, what="both ranks")


def test_that_no_rank_outlives_a_killed_launcher_of_the_batch_script(place: Place) -> None:
    wait_for_ranks = "while [ ! -e 0.0.json ] || [ ! -e 0.1.json ]; do sleep 0.1; done"
    command = BODY.splitlines()[1]
    wait_for_us = "while [ ! -e go ]; do sleep 0.1; done"
    body = f"#!/bin/bash\n{command} &\n{wait_for_ranks}\nkill -KILL $!\nwait $!\n{wait_for_us}\n"
    job_id = place.submit("--gpus=2", "train.sbatch", "hold", body=body)
    pids = [int(told["PID"]) for told in place.ranks(0, 2)]
    wait_until(
        lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in pids),
        timeout_s=120,
        what="the end of the ranks",
    )
    assert place.job(job_id).state is JobState.RUNNING


def test_that_what_sbatch_refuses_is_its_own_words_and_code_and_leaves_no_files(place: Place) -> None:
    (place.folder / "train.sbatch").write_text(BODY)
    done = place.pollux_sbatch("-p", "nowhere", "train.sbatch")
    assert done.returncode == 1
    assert "sbatch: error: " in done.stderr
    assert "invalid partition" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not (place.folder / "pollux-checkpoints").exists()


def test_that_test_only_leaves_nothing_and_hold_and_parsable_mean_what_they_mean(place: Place) -> None:
    (place.folder / "train.sbatch").write_text(BODY)
    done = place.pollux_sbatch("--test-only", "train.sbatch")
    assert done.returncode == 0
    assert "to start at" in done.stderr
    assert not (place.folder / "pollux-checkpoints").exists()
    held = place.pollux_sbatch("-H", "--parsable", "train.sbatch", "pass")
    assert re.fullmatch(r"[0-9]+\n", held.stdout)
    assert place.job(held.stdout.strip()).held


def test_that_python_can_submit_what_the_command_can(place: Place) -> None:
    (place.folder / "train.sbatch").write_text(BODY)
    runner = CommandRunner(environ=place.environ)

    def plan(*words: str, identifier: str):
        return plan_submission(
            [*words, "train.sbatch", "pass"],
            environ=place.environ,
            cwd=place.folder,
            config=Config(),
            token="0" * 64,
            identifier=identifier,
            read_stdin=lambda: b"",
        )

    held = plan("-H", identifier="a")
    place.jobs.append(submit(held, token="0" * 64, runner=runner, environ=place.environ))
    job = place.job(place.jobs[-1])
    assert decode_comment(job.comment) == held.terms
    assert read_token(held.token_file) == "0" * 64
    refused = plan("-p", "nowhere", identifier="b")
    with pytest.raises(SlurmCommandError, match="invalid partition"):
        submit(refused, token="0" * 64, runner=runner, environ=place.environ)
    assert not refused.token_file.exists()


def test_that_directives_and_variables_mean_to_us_what_they_mean_to_sbatch(place: Place) -> None:
    lines = [
        '#SBATCH --job-name="a b" --comment=one # --comment=remark',
        "# a remark, and a blank line",
        "",
        "#SBATCH --comment 'two \\'#\\' three' -G 1",
        " #SBATCH --comment=indented",
        "##SBATCH --comment=twice",
        "#SBATCH --gpus=2",
        "true",
        "#SBATCH --comment=late",
    ]
    text = "#!/bin/bash\n" + "\n".join(lines) + "\n"
    (place.folder / "odd.sbatch").write_text(text)

    def both(words: Sequence[str], environ: dict[str, str]) -> tuple[list[object], list[object]]:
        done = place.run("sbatch", "-H", "--parsable", *words, "odd.sbatch", environ=environ)
        place.jobs.append(done.stdout.strip())
        job = place.job(place.jobs[-1])
        directives = parse_words(parse_script(text, source="odd").directives).options
        ours = SbatchRequest.of(parse_words(words).options, {**place.environ, **environ}, directives)
        return (
            [job.name, job.comment, str(job.requested_gpus)],
            [ours.value("job-name"), ours.value("comment"), ours.value("gpus")],
        )

    theirs, ours = both([], {})
    assert theirs == ours == ["a b", "two '#' three", "2"]
    theirs, ours = both([], {"SBATCH_GPUS": "3", "SBATCH_JOB_NAME": "c"})
    assert theirs == ours == ["c", "two '#' three", "3"]
    theirs, ours = both(["--comm", "four", "-G4", "--gpus", "1"], {"SBATCH_GPUS": "3"})
    assert theirs == ours == ["a b", "four", "1"]


def test_that_a_job_is_warned_before_its_time_limit_and_saves(job_at_its_limit: tuple[Place, str]) -> None:
    place, job_id = job_at_its_limit
    job = place.wait(job_id, JobState.COMPLETED, timeout_s=75)
    assert place.saved() == ["0.0.saved"]
    assert job.exit_code == 0
