"""The command backend with programs that answer like a failing Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import (
    JobStateError,
    SlurmCommandError,
    SlurmError,
    SlurmReadError,
    SlurmUnavailable,
    UsageError,
)
from pollux_slurm.model import PLACED_WITHIN_S, Allocation, JobShape
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.job_json import parse_job
from tests.slurm.parsing.test_job_json import job, pending
from tests.slurm.parsing.test_node_json import node

META = {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}}
NEWER = {"slurm": {"version": {"major": "24", "micro": "5", "minor": "11"}, "release": "24.11.5"}}
JOBS = json.dumps({"meta": META, "errors": [], "jobs": [job()]})
NODES = json.dumps({"meta": META, "errors": [], "nodes": [node()]})
STATUS_LINE = "7 7 N/A {state} {priority} 1 4000000 {restarts}"


class Programs:
    """A folder of programs that print what a test sets, and record their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer("squeue", JOBS)
        self.answer("sinfo", NODES)
        self.answer("scontrol", "")
        self.answer("scancel", "")

    def answer(self, name: str, stdout: str, *, stderr: str = "", code: int = 0) -> None:
        """Let `name` print this. `squeue` with `--Format` prints the line of `set_status`, if set."""
        (self.folder / f"{name}.out").write_text(stdout)
        (self.folder / f"{name}.err").write_text(stderr)
        self.write(
            name,
            f'case "$*" in *--Format*) if [ -e {self.folder}/status ]; then\n'
            f"cat {self.folder}/status; exit; fi;; esac\n"
            f"cat {self.folder}/{name}.out; cat {self.folder}/{name}.err >&2; exit {code}",
        )

    def set_status(self, *, state: str, priority: int = 1, restarts: int = 0) -> None:
        line = STATUS_LINE.format(state=state, priority=priority, restarts=restarts)
        (self.folder / "status").write_text(line + "\n")

    def write(self, name: str, body: str) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/calls\n{body}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture
def client(programs: Programs) -> CommandClient:
    runner = CommandRunner(environ={"PATH": os.environ["PATH"]}, bin_dir=programs.folder, timeout_s=300.0)
    return CommandClient(runner, wall_clock=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc))


# ------------------------------------------------------------------------------- whole pictures or none


def test_that_a_snapshot_is_one_read_of_jobs_one_of_reservations_and_one_of_nodes(
    programs: Programs, client: CommandClient
) -> None:
    snapshot = client.snapshot()
    assert [job.job_id for job in snapshot.jobs] == ["7"]
    assert [node.name for node in snapshot.nodes] == ["n0"]
    assert [call.split()[0] for call in programs.calls()] == ["squeue", "scontrol", "sinfo"]


def test_that_nodes_of_newer_releases_are_read_with_scontrol(
    programs: Programs, client: CommandClient
) -> None:
    programs.answer("squeue", json.dumps({"meta": NEWER, "errors": [], "jobs": []}))
    programs.answer("scontrol", json.dumps({"meta": NEWER, "errors": [], "nodes": [node()]}))
    assert len(client.snapshot().nodes) == 1
    assert programs.calls()[2] == "scontrol --all show nodes --json"


@pytest.mark.parametrize("command", ["squeue", "sinfo"])
@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        NODES[: len(NODES) // 2],
        '{"meta": {}, "jobs": [], "nodes": []}',
        json.dumps({"meta": META, "errors": [], "jobs": [5], "nodes": [5]}),
        json.dumps({"meta": META, "errors": [], "jobs": {}, "nodes": {}}),
        json.dumps({"meta": META, "errors": [], "jobs": [{}], "nodes": [{}]}),
        json.dumps({"meta": META, "errors": [{"error": "oops"}], "jobs": [], "nodes": [node()]}),
        '{"jobs": [{"job_id": NaN}]}',
        "[" * 100_000,
    ],
)
def test_that_an_incomplete_answer_is_an_error(
    programs: Programs, client: CommandClient, command: str, answer: str
) -> None:
    programs.answer(command, answer)
    with pytest.raises(SlurmReadError):
        client.snapshot()


@pytest.mark.parametrize("key", ["jobs", "nodes"])
def test_that_one_malformed_entry_fails_the_whole_read(
    programs: Programs, client: CommandClient, key: str
) -> None:
    good: Any = {"jobs": job(), "nodes": node()}[key]
    bad: Any = {"jobs": job(job_id=8, restart_cnt="?"), "nodes": node(name="n1", cpus="?")}[key]
    answer = json.dumps({"meta": META, "errors": [], key: [good, bad]})
    programs.answer("squeue" if key == "jobs" else "sinfo", answer)
    with pytest.raises(SlurmReadError, match="job 8: .*restart_cnt" if key == "jobs" else "node n1: .*cpus"):
        client.snapshot()


def test_that_control_characters_and_broken_utf8_in_a_name_are_accepted(
    programs: Programs, client: CommandClient
) -> None:
    (programs.folder / "squeue.out").write_bytes(JOBS.encode().replace(b'"train"', b'"a\x01\xff\nb"'))
    assert client.snapshot().jobs[0].name == "a\x01�\nb"


def test_that_a_version_is_read_from_a_text_of_any_length(programs: Programs, client: CommandClient) -> None:
    programs.answer("scontrol", "slurm-wlm v24.11.5-3\n")
    assert client.version() == "24.11.5-3"
    # With a cost that grows with the square of the length, this takes an hour.
    programs.answer("scontrol", "1" * 1_000_000)
    with pytest.raises(SlurmReadError, match="printed no release"):
        client.version()


def test_that_output_filters_in_a_users_environment_are_ignored(programs: Programs) -> None:
    programs.write("squeue", f"env > {programs.folder}/environ; cat {programs.folder}/squeue.out")
    environ = {
        "PATH": os.environ["PATH"],
        "SQUEUE_USERS": "alice",
        "SQUEUE_STATES": "RUNNING",
        "SLURM_CLUSTERS": "other",
        "LC_ALL": "de_DE",
        "TZ": "Asia/Tokyo",
        "SLURM_CONF": "/somewhere",
    }
    CommandClient(CommandRunner(environ=environ, bin_dir=programs.folder, timeout_s=300.0)).snapshot()
    seen = dict(
        line.split("=", 1) for line in (programs.folder / "environ").read_text().splitlines() if "=" in line
    )
    assert not {"SQUEUE_USERS", "SQUEUE_STATES", "SLURM_CLUSTERS"} & seen.keys()
    assert (seen["LC_ALL"], seen["TZ"], seen["SLURM_CONF"]) == ("C", "UTC", "/somewhere")
    assert seen["SQUEUE_LOCAL"] == seen["SINFO_LOCAL"] == seen["SCONTROL_LOCAL"] == "1"


# --------------------------------------------------------------------------------- slurmctld in trouble

SILENT = [
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "squeue: error: slurm_receive_msg: Socket timed out on send/recv operation",
    "squeue: error: Munge encode failed: Failed to access socket",
    "slurm_load_jobs error: Slurm backup controller in standby mode",
    "scontrol: error: Protocol authentication error",
]


@pytest.mark.parametrize("words", SILENT)
def test_that_an_unreachable_controller_is_unavailable(
    programs: Programs, client: CommandClient, words: str
) -> None:
    programs.answer("squeue", "", stderr=words, code=1)
    with pytest.raises(SlurmUnavailable):
        client.snapshot()
    with pytest.raises(SlurmUnavailable):
        client.read_job("7")
    programs.set_status(state="PENDING", priority=0)
    programs.answer("scontrol", "", stderr=words, code=1)
    with pytest.raises(SlurmUnavailable):
        client.release("7")


def test_that_a_priority_above_slurms_largest_is_that_one(programs: Programs, client: CommandClient) -> None:
    """Larger numbers mean other things to Slurm, and a job may wait with one near them."""
    programs.set_status(state="PENDING")
    client.set_priority("7", 2**32 - 2)
    assert f"Priority={2**32 - 16}" in programs.calls()[-1]


def test_that_a_command_that_hangs_is_stopped(programs: Programs) -> None:
    programs.write("squeue", "exec sleep 600")
    runner = CommandRunner(environ=dict(os.environ), bin_dir=programs.folder, timeout_s=0.3)
    with pytest.raises(SlurmUnavailable, match="squeue did not end within"):
        CommandClient(runner).snapshot()


def test_that_another_failure_is_raised_with_slurms_message(
    programs: Programs, client: CommandClient
) -> None:
    programs.answer("squeue", "", stderr="squeue: error: Access denied\n", code=1)
    with pytest.raises(SlurmReadError, match="Access denied"):
        client.snapshot()
    programs.set_status(state="RUNNING")
    programs.answer("scontrol", "", stderr="Access/permission denied for job 7\n", code=1)
    with pytest.raises(SlurmCommandError, match="job 7: scontrol: Access/permission denied") as refused:
        client.requeue_hold("7")
    assert not isinstance(refused.value, JobStateError)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "7 7",
        "7 7 N/A ASLEEP 1 1 0 0",
        "7 7 N/A PENDING high 1 0 0",
        "7 7 N/A PENDING 1 1 0 N/A",
        f"7 7 N/A PENDING 1 1 0 {'9' * 5000}",
        "x" * 300,
    ],
)
def test_that_a_malformed_job_status_prevents_the_command(
    programs: Programs, client: CommandClient, line: str
) -> None:
    (programs.folder / "status").write_text(line + "\n")
    with pytest.raises(SlurmError):
        client.hold("7")
    assert not [call for call in programs.calls() if call.startswith("scontrol")]


def test_that_a_command_for_one_array_task_does_not_name_the_array(
    programs: Programs, client: CommandClient
) -> None:
    """The last task of array 7 has the number 7 itself: `requeuehold 7` would requeue all of them."""
    (programs.folder / "status").write_text("9 7 0 RUNNING 1 1 0 0\n7 7 2 RUNNING 1 1 0 0\n")
    client.requeue_hold("7")
    assert programs.calls()[-1] == "scontrol requeuehold 7_2"


def test_that_state_and_run_are_read_at_once(programs: Programs, client: CommandClient) -> None:
    (programs.folder / "status").write_text("7 7 N/A RUNNING 1 1 0 3\n")
    with pytest.raises(JobStateError, match="has been requeued 3 times, not 2"):
        client.requeue_hold("7", restart_count=2)
    client.requeue_hold("7", restart_count=3)
    assert [call.split()[0] for call in programs.calls()] == ["squeue", "squeue", "scontrol"]


def test_that_a_hold_carries_its_condition_and_stays_the_owners_own(
    programs: Programs, client: CommandClient
) -> None:
    programs.set_status(state="PENDING")
    client.hold("7")
    assert programs.calls()[1:] == [
        "scontrol update JobId=7 MinCPUsNode=1 Priority=0",
        "scontrol uhold 7",
    ]


@pytest.mark.parametrize("comment", ["a\0b"])
def test_that_a_nul_character_is_refused_before_any_command(
    programs: Programs, client: CommandClient, comment: str
) -> None:
    programs.set_status(state="PENDING")
    with pytest.raises(UsageError, match="NUL"):
        client.set_comment("7", comment)


# ---------------------------------------------------------------------------------------------- reshape


def updates(programs: Programs) -> list[dict[str, str]]:
    lines = [call for call in programs.calls() if call.startswith("scontrol update")]
    return [dict(pair.split("=", 1) for pair in line.split()[2:]) for line in lines]


def held(programs: Programs, **changes: Any) -> None:
    programs.set_status(state="PENDING", priority=0, restarts=changes.get("restart_cnt", 0))
    entry = pending(priority=0, state_reason="JobHeldUser", **changes)
    programs.answer("squeue", json.dumps({"meta": META, "errors": [], "jobs": [entry]}))


def test_that_nodes_are_named_only_when_the_job_cannot_start(
    programs: Programs, client: CommandClient
) -> None:
    held(programs, restart_cnt=1, submit_time=0)
    client.reshape("7", JobShape.of(Allocation.of({"n0": 4, "n1": 1}), cpus_per_gpu=2))
    first, second = updates(programs)
    assert first["ReqNodeList"] == ""
    assert first["StartTime"] == "2026-01-01T00:01:00"
    assert second == {"JobId": "7", "ReqNodeList": "n0,n1", "StartTime": "2026-01-01T00:00:02"}
    assert (first["NumNodes"], first["NumTasks"], first["NumCPUs"]) == ("2-2", "2", "10")
    assert (first["TresPerJob"], first["TresPerNode"], first["CpusPerTres"]) == (
        "gres:gpu:5",
        "",
        "gres:gpu:2",
    )


def test_that_a_job_known_from_a_snapshot_is_not_read_completely_again(
    programs: Programs, client: CommandClient
) -> None:
    held(programs, restart_cnt=2, tres_per_job="gres:gpu:t4:1")
    known = parse_job(pending(priority=0, restart_cnt=2, tres_per_job="gres:gpu:t4:1"))
    client.reshape("7", JobShape(num_gpus=3, nodes=("n1",)), known=known)
    assert updates(programs)[0]["TresPerJob"] == "gres:gpu:t4:3"
    assert not [call for call in programs.calls() if "--json" in call]
    with pytest.raises(JobStateError, match="requeued 2 times, not 1"):
        client.reshape("7", JobShape(num_gpus=3), known=dataclasses.replace(known, restart_count=1))
    assert len(updates(programs)) == 2


def test_that_slurmctlds_time_of_the_kill_counts_when_clocks_differ(
    programs: Programs, client: CommandClient
) -> None:
    killed = int(datetime(2026, 1, 1, 0, 5, tzinfo=timezone.utc).timestamp())
    held(programs, restart_cnt=1, submit_time=killed, eligible_time=killed + 121)
    client.reshape("7", JobShape(num_gpus=1))
    assert updates(programs)[-1]["StartTime"] == "2026-01-01T00:05:02"


def test_that_a_job_that_never_ran_keeps_its_owners_begin_time(
    programs: Programs, client: CommandClient
) -> None:
    begin = int(datetime(2026, 1, 2, tzinfo=timezone.utc).timestamp())
    held(programs, submit_time=0, eligible_time=begin)
    client.reshape("7", JobShape(num_gpus=1))
    assert updates(programs)[-1]["StartTime"] == "2026-01-02T00:00:00"


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"tres_per_job": "gres:gpu:t4:1"}, JobShape(num_gpus=1, gpu_type="a100")),
        ({"tres_per_job": "gres:gpu:t4:1"}, JobShape(num_gpus=1, nodes=("n3",), gpu_type="a100")),
        ({}, JobShape(num_gpus=1, gpu_type="a100")),
        ({"het_job_id": 3}, JobShape(num_gpus=1)),
    ],
)
def test_that_an_impossible_shape_is_refused_before_any_update(
    programs: Programs, client: CommandClient, changes: dict[str, Any], shape: JobShape
) -> None:
    held(programs, **changes)
    with pytest.raises(SlurmCommandError, match="job 7"):
        client.reshape("7", shape)
    assert updates(programs) == []


def test_that_a_job_that_waits_to_be_placed_begins_once_it_is(
    programs: Programs, client: CommandClient
) -> None:
    now = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp())
    held(programs, submit_time=now, eligible_time=now + PLACED_WITHIN_S)
    client.reshape("7", JobShape(num_gpus=1))
    assert updates(programs)[-1]["StartTime"] == "2026-01-01T00:00:00"


def test_that_a_job_whose_nodes_were_refused_gets_its_begin_time_back(
    programs: Programs, client: CommandClient
) -> None:
    held(programs, submit_time=0)
    programs.write(
        "scontrol",
        'case "$*" in *ReqNodeList=n9*) echo "Invalid node name specified for job 7" >&2; exit 1;; esac',
    )
    with pytest.raises(SlurmCommandError, match="Invalid node name"):
        client.reshape("7", JobShape(num_gpus=1, nodes=("n9",)))
    assert updates(programs)[-1] == {"JobId": "7", "StartTime": "2026-01-01T00:00:00"}


# ----------------------------------------------------------------------------------------------- submit


def test_that_sbatch_sees_script_options_arguments_and_exactly_the_given_environment(
    programs: Programs, client: CommandClient
) -> None:
    programs.write(
        "sbatch", f"env > {programs.folder}/environ; cat > {programs.folder}/script; echo '12;sandbox'"
    )
    script = "#!/bin/sh\necho ünï $1\n"
    number = client.submit(script, ["--gpus=1"], ["a b"], {"PATH": os.environ["PATH"], "MINE": "x"})
    assert number == "12"
    assert programs.calls() == ["sbatch --parsable --gpus=1 /dev/stdin a b"]
    assert (programs.folder / "script").read_text() == script
    environ = (programs.folder / "environ").read_text()
    assert "MINE=x\n" in environ
    assert "LC_ALL" not in environ


def test_that_an_answer_without_a_job_id_is_an_error(programs: Programs, client: CommandClient) -> None:
    programs.answer("sbatch", "Submitted, I think\n")
    # Not a refusal: the job may be in the queue.
    with pytest.raises(SlurmReadError, match="no job id"):
        client.submit("#!/bin/sh\n", [], [], dict(os.environ))


def test_that_a_sites_sbatch_may_print_more_than_the_job_id(
    programs: Programs, client: CommandClient
) -> None:
    for answer in ("*** Welcome to 7 ***\n\n41\n", "41;big\nplease clean /scratch\n"):
        programs.answer("sbatch", answer)
        assert client.submit("#!/bin/sh\n", [], [], dict(os.environ)) == "41"
