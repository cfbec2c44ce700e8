"""Faults of jobs that move in place: of their wings, their anchors, their processes, and amid a move."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterable

from pollux_slurm.model import JobState, ReallocationWay, SlurmJob
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment
from pollux_slurm.store.contract.interface import GenerationRecord, GenerationState
from pollux_slurm.system.process_control import ProcessRecord, processes_with_environ, send_signal
from tests.chaos.injection import Injected, Undo, jobs_in
from tests.chaos.schedule import Planned
from tests.chaos.site import Site
from tests.chaos.watch import Replica, replicas


def regroups(site: Site) -> dict[str, GenerationRecord]:
    """Return the generations that are planned or committed, and not trained in yet, by job."""
    jobs = {job.job_id for job in jobs_in(site, JobState.RUNNING)}
    return {
        one.slurm_job_id: one
        for one in site.user.store.generations.open_generations()
        if one.slurm_job_id in jobs
    }


def cancel_wing(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Cancel one wing, as a preemption or its owner would."""
    wings = [
        wing
        for job in jobs_in(site, JobState.RUNNING)
        for wing in job.wings
        if wing.state is JobState.RUNNING
    ]
    return _cancel(site, wings, rng)


def cancel_new_wing(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Cancel a wing that a move waits for, or has just got; the move's others are left."""
    under_way = {move.id for move in site.user.store.journal.open_reallocations()}
    wings = [
        wing
        for job in jobs_in(site, JobState.RUNNING)
        for wing in job.wings
        if not wing.state.is_over and (terms := parse_wing_comment(wing.comment)) and terms.plan in under_way
    ]
    return _cancel(site, wings, rng)


def _cancel(site: Site, wings: Iterable[SlurmJob], rng: random.Random) -> Injected | None:
    numbers = sorted(wing.job_id for wing in wings)
    if not numbers:
        return None
    number = rng.choice(numbers)
    site.user.slurm.cancel(number)
    return Injected(detail=number)


def _newcomers(site: Site) -> list[Replica]:
    """Return the processes that have been started to join, and belong to no committed generation yet."""
    waited_for = {job_id for job_id, one in regroups(site).items() if one.state is GenerationState.PLANNED}
    known = {
        member.id
        for job_id in waited_for
        for one in site.user.store.generations.of_job(job_id)
        if one.state is GenerationState.REGROUPED
        for member in one.members
    }
    found = replicas(site.watch.slurm_conf)
    return [one for one in found if one.is_newcomer and one.job_id in waited_for and one.member not in known]


def kill_newcomer(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    return _kill(site, _newcomers(site), rng)


def kill_rank_0(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    in_place = {job.job_id for job in jobs_in(site, JobState.RUNNING) if job.wings}
    found = replicas(site.watch.slurm_conf)
    return _kill(site, [one for one in found if one.job_id in in_place and one.rank == 0], rng)


def _kill(site: Site, found: list[Replica], rng: random.Random) -> Injected | None:
    """Kill a training process. Its job may fail by that, as any whose process is killed."""
    if not found:
        return None
    replica = rng.choice(sorted(found, key=lambda one: one.process.pid))
    site.job(replica.job_id).may_fail = True
    send_signal(replica.process, signal.SIGKILL)
    return Injected(detail=f"rank {replica.rank} of job {replica.job_id} on {replica.node}")


def delay_newcomers(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Stop the processes that are to join for a while, so that one wing is ready and another is not."""
    found = _newcomers(site)
    if not found:
        return None
    late = [one for one in found if one.slurm_id == rng.choice(sorted(one.slurm_id for one in found))]
    for replica in late:
        send_signal(replica.process, signal.SIGSTOP)

    def let_go() -> bool:
        for replica in late:
            send_signal(replica.process, signal.SIGCONT)
        return True

    return Injected(
        detail=f"{len(late)} of job {found[0].job_id}", undo=Undo(after_s=rng.uniform(3, 8), act=let_go)
    )


def kill_anchor(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Kill an anchor's `pollux run`: its job has failed then, and its wings must end by themselves."""
    job_id = _anchor(site, rng)
    if job_id is None:
        return None
    site.job(job_id).may_fail = True
    processes = _processes_of(site, job_id)
    for process in processes:
        send_signal(process, signal.SIGKILL)
    return Injected(detail=f"{job_id}, {len(processes)} processes")


def _processes_of(site: Site, job_id: str) -> list[ProcessRecord]:
    return processes_with_environ({"SLURM_CONF": site.watch.slurm_conf, "SLURM_JOB_ID": job_id})


def suspend_anchor(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Suspend an anchor for longer than its wings wait for it."""
    job_id = _anchor(site, rng)
    if job_id is None:
        return None
    site.held_externally.add(job_id)
    site.scontrol("suspend", job_id)

    def resume() -> bool:
        site.scontrol("resume", job_id)
        site.held_externally.discard(job_id)
        return True

    return Injected(detail=job_id, undo=Undo(after_s=rng.uniform(12, 16), act=resume))


def drain_anchors_node(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Drain an anchor's node for a while, as an administrator would: its jobs are to leave it."""
    number = _anchor(site, rng)
    found = re.search(r"\sNodeList=(n[0-9]+)", "" if number is None else site.scontrol("show", "job", number))
    if found is None:
        return None
    node = found[1]
    site.scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=chaos")

    def resume() -> bool:
        site.scontrol("update", f"NodeName={node}", "State=RESUME")
        return True

    return Injected(detail=f"{node}, of {number}", undo=Undo(after_s=rng.uniform(15, 25), act=resume))


def _anchor(site: Site, rng: random.Random) -> str | None:
    found = sorted(job.job_id for job in jobs_in(site, JobState.RUNNING) if job.wings)
    return rng.choice(found) if found else None


def race_for_gpus(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Submit an unmanaged job that wants exactly the GPUs that a move in place is about to take."""
    for move in site.user.store.journal.open_reallocations():
        gained = move.target.as_dict()
        for node, gpus in move.source.gpus_by_node:
            gained[node] = gained.get(node, 0) - gpus
        node, gpus = max(gained.items(), key=lambda item: item[1], default=("", 0))
        if move.way is ReallocationWay.IN_PLACE and gpus > 0:
            options = (f"--gpus={gpus}", f"--nodelist={node}", "--nodes=1", "--mem=100M")
            site.unmanaged.append(site.user.plain("sleep 5", *options))
            return Injected(detail=f"{gpus} of {node}, wanted by job {move.slurm_job_id}")
    return None
