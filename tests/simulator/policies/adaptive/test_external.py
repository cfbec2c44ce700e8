"""A policy in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator import Application, Cluster, NodeGroup, simulate, slurm_rules
from pollux_slurm.simulator.experiments.experiment import expand, read_experiment
from pollux_slurm.simulator.experiments.runs import run_one
from pollux_slurm.simulator.policies import ExternalPolicy
from pollux_slurm.simulator.policies.adaptive import external
from tests.simulator.builders import made_application, made_job, write_traces

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "scheduler"
CLUSTER = Cluster(num_nodes=2, gpus_per_node=4)


def policy_of(tmp_path: Path, answer: str, *, time_limit_s: float = 300.0) -> ExternalPolicy:
    """Return a policy whose process computes `answer`, an expression of `asked`, for each line."""
    program = tmp_path / "mine.py"
    program.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)['round']\n"
        f"    print({answer}, flush=True)\n"
    )
    return ExternalPolicy((sys.executable, str(program)), time_limit_s=time_limit_s)


@pytest.fixture
def applications(tmp_path: Path) -> Mapping[str, Application]:
    return {"made": made_application(tmp_path)}


def test_that_a_process_is_asked_each_round_and_lives_for_the_simulation(
    tmp_path: Path, applications: Mapping[str, Application]
) -> None:
    """It gives each job one GPU of the node that is its number, and tells its own process id."""
    log = tmp_path / "log"
    told = 'f\'{os.getpid()} {asked["now_s"]:g} {len(asked["requests"])}\\n\''
    node = "asked['problem']['nodes'][int(job['job_id'])]['name']"
    given = f"{{job['job_id']: {{{node}: 1}} for job in asked['problem']['jobs']}}"
    answer = f"(open({str(log)!r}, 'a').write({told}), json.dumps({{'allocations': {given}}}))[1]"
    policy = policy_of(tmp_path, answer)
    done = simulate((made_job("0", at_s=5), made_job("1", at_s=70)), applications, policy, CLUSTER)
    assert [record.allocations for record in done.rounds[:2]] == [
        {"0": ((0, 1),)},
        {"0": ((0, 1),), "1": ((1, 1),)},
    ]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len({line[0] for line in lines}) == 1, "one process"
    assert [(line[1], line[2]) for line in lines[:2]] == [("60", "1"), ("120", "2")]
    pid = int(lines[0][0])
    os.kill(pid, 0)
    policy.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("'what?'", "the answer is not JSON"),
        ("'[]'", 'the answer is not {"allocations": {JOB: {NODE: GPUS}}}'),
        ("'{\"jobs\": {}}'", "the answer is not"),
        ("json.dumps({'allocations': {'b': {}}})", "job 'b' has ended, or never was"),
        ("json.dumps({'allocations': {'a': 3}})", "job a: expected GPUs by node, not 3"),
        ("json.dumps({'allocations': {'a': {'n': 1}}})", "job a: no node has the name 'n' and 1 GPUs"),
        ("json.dumps({'allocations': {'a': {asked['problem']['nodes'][0]['name']: 0}}})", "and 0 GPUs"),
        (
            "json.dumps({'allocations': {'a': {asked['problem']['nodes'][0]['name']: 99}}})",
            "job a: 99 GPUs, not 1 to 16",
        ),
        ("sys.exit(3)", "ended with exit code 3"),
    ],
)
def test_that_a_wrong_answer_ends_the_simulation_with_the_reason(
    tmp_path: Path, applications: Mapping[str, Application], answer: str, message: str
) -> None:
    with pytest.raises(SimulationError) as raised:
        simulate((made_job("a", at_s=5),), applications, policy_of(tmp_path, answer), CLUSTER)
    assert str(raised.value).startswith("policy external, at 60 s: ")
    assert message in str(raised.value)


def test_that_what_is_given_away_twice_is_refused(
    tmp_path: Path, applications: Mapping[str, Application]
) -> None:
    answer = (
        "json.dumps({'allocations': {job['job_id']: {asked['problem']['nodes'][0]['name']: 4} "
        "for job in asked['problem']['jobs']}})"
    )
    policy = policy_of(tmp_path, answer)
    with pytest.raises(SimulationError, match="node 0 was given away 8 times over 4 GPUs"):
        simulate((made_job("a", at_s=5), made_job("b", at_s=5)), applications, policy, CLUSTER)
    policy.close()


def test_that_a_job_has_gpus_of_one_type(tmp_path: Path, applications: Mapping[str, Application]) -> None:
    groups = tuple(
        NodeGroup(num_nodes=1, gpus_per_node=4, gpu_type=kind, speed=speed)
        for kind, speed in (("t4", 1.0), ("a100", 2.0))
    )
    answer = "json.dumps({'allocations': {'a': {node['name']: 1 for node in asked['problem']['nodes']}}})"
    with pytest.raises(SimulationError, match="job a: GPUs of several types"):
        simulate((made_job("a", at_s=5),), applications, policy_of(tmp_path, answer), Cluster(groups=groups))


def test_that_a_job_that_is_being_moved_stays(
    tmp_path: Path, applications: Mapping[str, Application]
) -> None:
    """Under rules slurm, a start takes longer than a round of ten seconds."""
    node = "asked['problem']['nodes'][int(asked['now_s'] == 20)]['name']"
    answer = f"json.dumps({{'allocations': {{'a': {{{node}: 1}}}}}})"
    cluster = Cluster(num_nodes=2, gpus_per_node=4, interval_s=10.0)
    with pytest.raises(SimulationError, match="job a is being moved: its allocation cannot change"):
        simulate(
            (made_job("a", at_s=5),),
            applications,
            policy_of(tmp_path, answer),
            cluster,
            rules=slurm_rules(slurm_starts=False),
        )


def test_that_jobs_keep_their_users_batch_where_it_is_asked_for(
    tmp_path: Path, applications: Mapping[str, Application]
) -> None:
    """On four GPUs, a step takes as long at a batch of 32 as at the user's 8, which takes more of them."""
    policy_of(tmp_path, "json.dumps({'allocations': {'a': {asked['problem']['nodes'][0]['name']: 4}}})")
    ends = []
    for user_batch in (True, False):
        policy = ExternalPolicy(
            (sys.executable, str(tmp_path / "mine.py")), time_limit_s=300.0, user_batch=user_batch
        )
        with contextlib.closing(policy):
            done = simulate((made_job("a", at_s=5),), applications, policy, CLUSTER)
        ends.append(done.jobs[0].finished_s or 0.0)
    # 150 steps of 0.5 s after a start of 30 s.
    assert ends[0] == pytest.approx(60 + 30 + 75)
    assert ends[1] < ends[0] - 10


def test_that_an_answer_has_a_time_limit(tmp_path: Path, applications: Mapping[str, Application]) -> None:
    policy = policy_of(tmp_path, "time.sleep(1000)", time_limit_s=0.5)
    with pytest.raises(SimulationError, match=r"no answer within 0\.5 s \(time_limit_s\)"):
        simulate((made_job("a", at_s=5),), applications, policy, CLUSTER)


def test_that_an_answer_without_an_end_is_refused(
    tmp_path: Path, applications: Mapping[str, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "_MOST_BYTES", 2**17)
    policy = policy_of(tmp_path, "'x' * 2**18")
    with pytest.raises(SimulationError, match="an answer of more than"):
        simulate((made_job("a", at_s=5),), applications, policy, CLUSTER)


def test_that_a_missing_program_is_named(applications: Mapping[str, Application]) -> None:
    policy = ExternalPolicy(("/nope/mine",), time_limit_s=1.0)
    with pytest.raises(SimulationError, match="cannot start /nope/mine: No such file"):
        simulate((made_job("a", at_s=5),), applications, policy, CLUSTER)


def test_that_the_example_serves_first_come_first_served(tmp_path: Path) -> None:
    """Job b waits for a's GPUs, and c for b, although c would fit."""
    write_traces(tmp_path / "traces" / "made")
    (tmp_path / "w.csv").write_text(
        "name,time,application,num_replicas,batch_size\na,1,made,3,8\nb,2,made,2,8\nc,3,made,1,8\n"
    )
    options = {"traces": str(tmp_path / "traces"), "workload": [str(tmp_path / "w.csv")], "nodes": "1x4"}
    file = tmp_path / "experiment.toml"
    text = (EXAMPLE / "experiment.toml").read_text(encoding="utf-8")
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("load", "seed"))))
    (tmp_path / "first_come.py").write_bytes((EXAMPLE / "first_come.py").read_bytes())
    runs = expand(read_experiment(file, options), {"made": made_application(tmp_path / "again")})
    mine = next(run for run in runs if run.settings.label == "mine")
    assert mine.settings.command == ("python3", str(tmp_path / "first_come.py"))
    done = {job.name: job for job in run_one(mine.spec, {"made": made_application(tmp_path / "third")}).jobs}
    assert done["a"].started_s == 60
    assert done["b"].started_s >= done["a"].finished_s
    assert done["c"].started_s == done["b"].started_s
    assert json.dumps(done["a"].gpu_changes[0]) == "[60.0, 3]"
