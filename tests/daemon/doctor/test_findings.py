"""What `pollux doctor` finds: in settings made for the test, and on a real sandbox."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.config import Config, DaemonConfig, MovesConfig, PolicyConfig
from pollux_slurm.daemon.doctor.findings import (
    Verdict,
    examine_daemon,
    examine_jobs,
    examine_objective,
    examine_shares,
    examine_slurm,
    examine_store,
)
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.model import Allocation, JobState, SlurmNode
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.accounting import Association, QosLimits
from pollux_slurm.slurm.parsing.node_json import SEVERAL_GPU_TYPES
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import DaemonStatus
from tests.daemon.builders import NOON, job, node, reallocation, record, snapshot

SITE = {
    "KillWait": "30 sec",
    "JobRequeue": "1",
    "MinJobAge": "300 sec",
    "GresTypes": "gpu",
    "SelectType": "select/cons_tres",
    "SchedulerParameters": "(null)",
}


def verdicts(
    *, version: str = "22.05.8", skew_s: float = 0.0, config: Config | None = None, **site: str
) -> dict[str, str]:
    found = examine_slurm(
        config or Config(),
        version=version,
        site={**SITE, **site},
        snapshot=snapshot([node("n0")], []),
        clock_skew_s=skew_s,
    )
    findings = list(found)
    assert all(bool(finding.cure) == (finding.verdict is not Verdict.OK) for finding in findings)
    return {finding.name: finding.verdict.value for finding in findings if finding.verdict is not Verdict.OK}


def test_that_a_good_site_has_nothing_to_change() -> None:
    assert verdicts() == {}


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"KillWait": "90 sec"}, "KillWait", "FAIL"),
        ({"JobRequeue": "0"}, "JobRequeue", "warn"),
        ({"MinJobAge": "60 sec"}, "MinJobAge", "warn"),
        ({"GresTypes": "(null)"}, "GresTypes", "FAIL"),
        ({"SelectType": "select/linear"}, "SelectType", "FAIL"),
        ({"SchedulerParameters": "defer,bf_interval=5"}, "SchedulerParameters", "warn"),
        ({"SchedulerParameters": "sched_interval=300"}, "SchedulerParameters", "warn"),
        ({"SchedulerParameters": "enable_user_top"}, "enable_user_top", "warn"),
        ({"version": "20.11.9"}, "release", "FAIL"),
        ({"version": "27.05.0"}, "release", "warn"),
        ({"version": "odd"}, "release", "FAIL"),
        ({"skew_s": -3.0}, "clocks", "warn"),
    ],
)
def test_that_each_fault_is_found_alone(changes: dict[str, Any], name: str, verdict: str) -> None:
    assert verdicts(**changes) == {name: verdict}


def test_that_partitions_that_do_not_exist_are_named() -> None:
    config = Config(daemon=DaemonConfig(partitions=("main", "gpus")))
    assert verdicts(config=config) == {"partitions": "FAIL"}


def test_that_nodes_whose_gpus_cannot_be_used_are_named() -> None:
    nodes = [
        replace(node(f"n{i}"), gres_problem=problem) for i, problem in enumerate((SEVERAL_GPU_TYPES, "odd"))
    ]
    findings = examine_slurm(
        Config(), version="22.05.8", site=SITE, snapshot=snapshot(nodes, []), clock_skew_s=0.0
    )
    found = {one.name: one.text for one in findings if one.verdict is Verdict.WARN}
    assert found == {"mixed nodes": "GPUs of several types on n0", "unreadable nodes": "odd: n1"}


def test_that_anchors_on_gpu_nodes_are_warned_of_where_there_are_others() -> None:
    gpu, cpu = node("n0"), replace(node("c0"), num_gpus=0, partitions=("all", "cpu"))
    gpu = replace(gpu, partitions=("all", "gpu"))

    def found(*nodes: SlurmNode, **moves: Any) -> list[tuple[Verdict, str, str]]:
        findings = examine_slurm(
            Config(moves=MovesConfig(**moves)),
            version="22.05.8",
            site=SITE,
            snapshot=snapshot(list(nodes), []),
            clock_skew_s=0.0,
        )
        return [(one.verdict, one.text, one.cure) for one in findings if one.name == "anchors"]

    assert found(gpu, cpu, in_place=True) == [
        (
            Verdict.WARN,
            "anchors of jobs in place take CPUs of nodes with GPUs; nodes without GPUs: c0",
            "set moves.anchor_partition to a partition of nodes without GPUs: cpu",
        )
    ]
    assert found(gpu, replace(cpu, partitions=("all",)), in_place=True)[0][2].endswith("without GPUs")
    assert found(gpu, in_place=True) == []
    assert found(gpu, cpu, in_place=True, anchor_partition="cpu") == []
    assert found(gpu, cpu) == []


def test_that_the_interval_is_the_running_daemons_own() -> None:
    """A daemon may have been started with another one: `pollux daemon --interval 300`."""

    def verdict_and_text(seen: DaemonStatus | None) -> tuple[str, str]:
        found = examine_slurm(
            Config(),
            version="22.05.8",
            site=SITE,
            snapshot=snapshot([node("n0")], []),
            clock_skew_s=0.0,
            seen=seen,
        )
        (one,) = (finding for finding in found if finding.name == "MinJobAge")
        return one.verdict.value, one.text

    unknown = ("ok", "MinJobAge is 300 s, by these settings a round comes every 60 s")
    assert verdict_and_text(None) == verdict_and_text(DaemonStatus()) == unknown
    slow = DaemonStatus(owner="ctl:1:a", renewed_at=NOON, expires_at=NOON, interval_s=300, watch_s=10)
    assert verdict_and_text(slow) == ("warn", "MinJobAge is 300 s, the daemon's rounds come every 300 s")
    assert examine_daemon(slow, [], NOON).text == "runs as ctl:1:a, with a round every 300 s at least"
    shadow = dataclasses.replace(slow, is_shadow=True)
    assert examine_daemon(shadow, [], NOON).text.endswith(
        "its last round was in shadow mode: it moved nothing"
    )


def test_that_a_file_is_warned_of_only_where_slurm_has_other_hosts() -> None:
    url = "sqlite:////home/ada/pollux.db"
    here = [node("n0", hostname="box"), node("n1", hostname="box.lan")]
    one = examine_store(url, 1, here, host="box")
    assert (one.verdict, one.text, one.cure) == (Verdict.OK, f"1 active job in {url}", "")
    assert examine_store(url, 2, [], host="box").text.startswith("2 active jobs in ")
    others = [*here, *(node(f"c{number}", hostname=f"c{number}") for number in range(5))]
    warned = examine_store(url, 2, others, host="box.lan")
    assert warned.verdict is Verdict.WARN
    assert warned.text.endswith("other hosts by Slurm: c0, c1, c2 and 2 more")
    assert warned.cure
    assert examine_store("postgresql://db/pollux", 2, others, host="box").verdict is Verdict.OK


def test_that_an_unreadable_part_is_reported_once_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "doctor", "--store", f"sqlite:///{tmp_path}/none.db"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "FAIL store: " in done.stdout
    assert "FAIL Slurm: " in done.stdout
    assert "see above" not in done.stdout


def shares(limits: SiteLimits = SiteLimits(), **policy: Any) -> tuple[Verdict, str]:  # noqa: B008
    found = examine_shares(Config(policy=PolicyConfig(**policy)), limits)
    assert bool(found.cure) == (found.verdict is not Verdict.OK)
    return found.verdict, found.text


def test_that_jobs_that_share_without_any_limit_are_warned_of() -> None:
    assert shares() == (Verdict.OK, "users have equal shares, however many jobs they have")
    assert shares(between="accounts")[0] is Verdict.OK
    assert shares(share_half_life="7d")[1].endswith("; what they used counts, half after 7d")
    assert shares(between="jobs") == (Verdict.WARN, "jobs have equal shares and nothing limits GPUs")
    assert shares(between="jobs", user_limits=(("*", 8),))[0] is Verdict.OK
    assert shares(between="jobs", account_limits=(("x", 8),))[0] is Verdict.OK


@pytest.mark.parametrize(
    ("objective", "origin", "is_named"),
    [
        ("attained-work", "pollux.toml", True),
        ("attained-work", "default", False),
        ("generalized-mean", "pollux.toml", False),
    ],
)
def test_that_settings_of_another_objective_are_named(objective: str, origin: str, is_named: bool) -> None:
    policy = PolicyConfig(objective=objective, penalty="amortised")
    found = list(examine_objective(Config(policy=policy, origins=(("policy.penalty", origin),))))
    assert [one.text for one in found] == ["attained-work does not use policy.penalty"] * is_named


def test_that_limits_of_slurm_count_as_limits_of_gpus() -> None:
    for enough in (
        SiteLimits(qos_limits=(QosLimits(name="normal", gpus_per_user=8),)),
        SiteLimits(qos_limits=(QosLimits(name="normal", gpus_per_account=8),)),
        SiteLimits(qos_limits=(QosLimits(name="normal", gpus=8),)),
        SiteLimits(associations=(Association(account="x", user="ann", gpus=8),)),
    ):
        assert shares(enough, between="jobs")[0] is Verdict.OK
    per_job = SiteLimits(qos_limits=(QosLimits(name="normal", gpus_per_job=8),))
    assert shares(per_job, between="jobs")[0] is Verdict.WARN


def test_that_jobs_left_held_are_found_and_paused_ones_are_not() -> None:
    held = {"held": True, "restart_count": 1}
    jobs = [
        job("1", JobState.PENDING, held_by_slurm=True, **held),
        job("2", JobState.PENDING, **held),
        job("3", JobState.PENDING, **held),
        job("4", JobState.PENDING, held=True),
        job("5", on={"n0": 1}, unschedulable_reason="it is part of a heterogeneous job"),
    ]
    open_move = reallocation(1, "2", Step.REQUEUED, source={"n0": 1}, target={"n0": 2})
    drained = dataclasses.replace(
        reallocation(2, "3", Step.CONFIRMED, source={"n0": 1}, target={}), target=Allocation()
    )
    records = [
        record("1", state=JobState.PENDING),
        record("2", state=JobState.PENDING, open_reallocation=open_move, last_reallocation=open_move),
        record("3", state=JobState.PENDING, last_reallocation=drained),
        record("4", state=JobState.PENDING),
        record("5"),
    ]
    stuck, fixed = examine_jobs(snapshot([node("n0")], jobs), records)
    assert (stuck.verdict, stuck.cure) == (
        Verdict.WARN,
        "if they are not held on purpose: scontrol release 1",
    )
    assert stuck.text.endswith("an open move: 1; by Slurm itself, and released some times a day: 1")
    assert fixed.text == "adaptive jobs that cannot be moved: 5 (it is part of a heterogeneous job)"


def test_that_a_real_sandbox_is_a_good_site(sandbox: Sandbox, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pollux.db"
    open_store(url, create=True).close()
    done = subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "doctor", "--json", "--store", url],
        env={**os.environ, **sandbox.env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {name for name, finding in findings.items() if finding["verdict"] != "ok"} <= {
        "MinJobAge",
    }
    assert findings["store"]["text"] == f"0 active jobs in {url}"
    assert findings["shares"]["text"] == "users have equal shares, however many jobs they have"
    assert findings["GPUs"]["text"] == "20 GPUs on 4 nodes: a100, t4"
    assert "differ by" in findings["clocks"]["text"]
