"""Let processes join and leave a run on this machine while it trains, as `pollux resize` asks.

One request is carried out at a time:

- **starting**: newcomers have been started. They import, build and load while the others train.
- **planned**: all newcomers are ready, and rank 0 sees the plan.
- **committed**: rank 0 has committed it, and the members regroup. From here on, a member that fails ends the
  run. The request is answered after the first step, when those that have left have also ended.

Until it is committed, a change can be withdrawn: its newcomers are ended, and the others have not noticed.
Whatever the launcher decides begins with a look at whether rank 0 has committed.
"""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pollux_slurm.agent.environment.layout import (
    JOINS_VARIABLE,
    MEMBER_VARIABLE,
    MEMBERSHIP_VARIABLE,
    RunLayout,
)
from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.agent.membership.folder import MembershipFolder
from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.agent.membership.resize_requests import ResizeAnswer, ResizeRequest, ResizeRequests
from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.node.watched_processes import WatchedProcesses
from pollux_slurm.text import plural

# Newcomers that are not ready by then are ended, and a plan that rank 0 has not taken up is withdrawn.
_READY_TIMEOUT_S = 600.0
_PLAN_TIMEOUT_S = 3600.0
# A process that has left may still send a tracker's last values.
_LEAVE_TIMEOUT_S = 60.0


class _Stage(Enum):
    STARTING = "starting"
    PLANNED = "planned"
    COMMITTED = "committed"


@dataclass(slots=True)
class _Change:
    """A request that is being carried out."""

    request: ResizeRequest
    generation: Generation
    newcomers: tuple[str, ...]
    stage: _Stage
    since_s: float


class Resizing:
    """The membership of a run's processes. `num_gpus` is 0 where none limits their number.

    Newcomers that are not needed get SIGTERM, and SIGKILL `kill_after_s` later.
    """

    def __init__(
        self,
        folder: Path,
        layout: RunLayout,
        environ: Mapping[str, str],
        *,
        num_gpus: int,
        kill_after_s: float,
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests, self._membership = ResizeRequests(folder), MembershipFolder(folder)
        self._layout, self._environ = layout, environ
        self._kill_after_s, self._warn, self._monotonic = kill_after_s, warn, monotonic
        self._node = layout.nodes[0][0]
        first = tuple(Member(id=str(index), node=self._node) for index in range(layout.world_size))
        # More processes than GPUs at the start were somebody's choice.
        self._max_processes = max(num_gpus, len(first)) if num_gpus > 0 else None
        self._generation = Generation(number=0, members=first)
        self._num_plans, self._num_members = 0, len(first)
        self._change: _Change | None = None
        # Those that run, by member. Of those that are not to go on: when they are killed.
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at_s: dict[str, float] = {}
        self._local_ranks = {one.id: index for index, one in enumerate(first)}

    @property
    def num_processes(self) -> int:
        """How many processes train."""
        return len(self._generation.members)

    def first_environments(self, environments: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return the environments of the first members, which extend those given."""
        members = self._generation.members
        return [
            {**environment, **self._variables(member.id)}
            for member, environment in zip(members, environments, strict=True)
        ]

    def _variables(self, member: str) -> dict[str, str]:
        return {MEMBERSHIP_VARIABLE: str(self._membership.folder), MEMBER_VARIABLE: member}

    def note_started(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Note the first members' processes."""
        self._processes = dict(zip(_ids(self._generation), processes, strict=True))

    # ---------------------------------------------------------------------------------------- each moment

    def advance(self, run: WatchedProcesses, *, is_ending: bool) -> None:
        """Do what is due. Called again and again while the processes run; `is_ending`: they are to stop."""
        self._kill_overdue(run)
        self._note_commit()
        has_ended = is_ending or any(one not in self._processes for one in _ids(self._generation))
        if self._change is not None:
            self._go_on(self._change, run, has_ended=has_ended)
        elif not has_ended and not self._kill_at_s:
            request = self._requests.take()
            if request is not None:
                self._begin(request, run)

    def _go_on(self, change: _Change, run: WatchedProcesses, *, has_ended: bool) -> None:
        number = change.generation.number
        waited_s = self._monotonic() - change.since_s
        if change.stage is _Stage.COMMITTED:
            standstill_s = self._membership.standstill_s(number)
            if standstill_s is not None and not self._kill_at_s:
                self._finish(change, standstill_s)
        elif has_ended:
            self._withdraw(run, "the run has ended", is_noted=False)
        elif self._requests.is_withdrawn(change.request):
            self._withdraw(run, "the request was withdrawn", is_noted=False)
        elif change.stage is _Stage.STARTING:
            if all(self._membership.is_ready(number, one) for one in change.newcomers):
                self._plan(change, run)
            elif waited_s > _READY_TIMEOUT_S:
                self._withdraw(run, f"the new processes were not ready after {_READY_TIMEOUT_S:g} s")
        elif (refusal := self._membership.refusal(number)) is not None:
            self._withdraw(run, f"the script cannot be moved in place: {refusal}")
        elif waited_s > _PLAN_TIMEOUT_S:
            self._withdraw(run, f"the script came to no step within {_PLAN_TIMEOUT_S:g} s")

    def _plan(self, change: _Change, run: WatchedProcesses) -> None:
        try:
            self._membership.write_plan(change.generation)
        except OSError as error:
            self._withdraw(run, f"{self._membership.folder}: the plan cannot be written: {error.strerror}")
        else:
            change.stage, change.since_s = _Stage.PLANNED, self._monotonic()

    def _note_commit(self) -> None:
        """Take note of a plan that rank 0 has committed."""
        change = self._change
        if change is None or change.stage is not _Stage.PLANNED:
            return
        if self._membership.committed(change.generation.number) is None:
            return
        for one in set(_ids(self._generation)) - set(_ids(change.generation)):
            if one in self._processes:
                self._kill_at_s[one] = self._monotonic() + _LEAVE_TIMEOUT_S
        self._generation, change.stage = change.generation, _Stage.COMMITTED

    def _finish(self, change: _Change, standstill_s: float) -> None:
        self._membership.forget(before=change.generation.number)
        text = f"{_num_processes(self.num_processes)}, after {standstill_s:.2f} s without a step"
        self._requests.answer(change.request, ResizeAnswer(is_done=True, text=text))
        self._change = None

    def _withdraw(self, run: WatchedProcesses, reason: str, *, is_noted: bool = True) -> None:
        """Withdraw a change, and end its newcomers; if it has just been committed, take note of that."""
        assert self._change is not None
        change = self._change
        if not self._membership.withdraw(change.generation.number):
            self._note_commit()
            return
        for one in change.newcomers:
            if one in self._processes:
                run.end(self._processes[one])
                self._kill_at_s[one] = self._monotonic() + self._kill_after_s
        if is_noted:
            self._warn(f"the processes go on as they were: {reason}")
        self._requests.answer(change.request, ResizeAnswer(is_done=False, text=reason))
        self._change = None

    def _kill_overdue(self, run: WatchedProcesses) -> None:
        for one, due_s in self._kill_at_s.items():
            if self._monotonic() >= due_s:
                run.kill(self._processes[one])
                self._kill_at_s[one] = math.inf
                if self._change is not None:
                    self._warn(
                        f"a process that had left the training was killed after {_LEAVE_TIMEOUT_S:g} s"
                    )

    # ------------------------------------------------------------------------------------------ beginning

    def _begin(self, request: ResizeRequest, run: WatchedProcesses) -> None:
        members = self._generation.members
        problem = self._problem(request)
        if problem is not None:
            self._requests.answer(request, ResizeAnswer(is_done=False, text=problem))
            return
        staying = self._staying(request)
        if len(staying) == request.num_processes == len(members):
            text = f"{_num_processes(len(members))} already"
            self._requests.answer(request, ResizeAnswer(is_done=True, text=text))
            return
        first = self._num_members
        self._num_members += request.num_processes - len(staying)
        newcomers = [Member(id=str(number), node=self._node) for number in range(first, self._num_members)]
        self._num_plans += 1
        generation = Generation(number=self._num_plans, members=(*staying, *newcomers))
        self._change = _Change(
            request=request,
            generation=generation,
            newcomers=tuple(one.id for one in newcomers),
            stage=_Stage.STARTING,
            since_s=self._monotonic(),
        )
        try:
            for one in newcomers:
                self._processes[one.id] = run.start(self._newcomers_environment(one, generation))
        except LaunchError as error:
            self._withdraw(run, str(error))

    def _staying(self, request: ResizeRequest) -> list[Member]:
        members = self._generation.members
        remaining = [one for rank, one in enumerate(members) if rank not in request.leaves]
        return remaining[: request.num_processes]

    def _problem(self, request: ResizeRequest) -> str | None:
        count, wanted, most = self.num_processes, request.num_processes, self._max_processes
        unknown = [rank for rank in request.leaves if not 0 <= rank < count]
        refusal = self._membership.refusal(0)
        if refusal is not None:
            return f"the script cannot be moved in place: {refusal}"
        if most is not None and wanted > most:
            return f"this run has {plural(most, 'GPU')}, and each process needs its own"
        if request.leaves and request.generation != self._generation.number:
            return "the replicas have other ranks since then; ask again"
        if unknown:
            return f"there is no replica {unknown[0]}: they are 0 to {count - 1}"
        staying = len(self._staying(request))
        if staying == 0:
            return "all replicas were to leave: one must stay, because it has the training in memory"
        if most is not None and count + wanted - staying > most:
            return (
                f"new processes start before others leave, and too few of the {most} GPUs are free: first "
                f"let replicas leave (pollux resize {staying} --leave …)"
            )
        return None

    def _newcomers_environment(self, member: Member, generation: Generation) -> dict[str, str]:
        rank = generation.rank_of(member.id)
        assert rank is not None
        layout = replace(self._layout, nodes=((self._node, len(generation.members)),))
        # All that has left has ended, so its GPU is free.
        taken = {self._local_ranks[one] for one in self._processes}
        self._local_ranks[member.id] = min(set(range(len(taken) + 1)) - taken)
        return rank_environments(layout, 0, self._environ)[rank] | {
            "LOCAL_RANK": str(self._local_ranks[member.id]),
            JOINS_VARIABLE: str(generation.number),
            **self._variables(member.id),
        }

    # ------------------------------------------------------------------------------------- ended processes

    def before_stop(self, run: WatchedProcesses) -> None:
        """Withdraw what can be withdrawn: the processes are about to be asked to stop."""
        self._note_commit()
        if self._change is not None and self._change.stage is not _Stage.COMMITTED:
            self._withdraw(run, "the run was asked to stop", is_noted=False)

    def ends_run(self, run: WatchedProcesses, process: subprocess.Popen[bytes], code: int) -> bool:
        """Take note of a process that has ended; return whether the run fails with it."""
        member = next(name for name, known in self._processes.items() if known is process)
        del self._processes[member], self._local_ranks[member]
        self._note_commit()
        change = self._change
        if change is not None and member in change.newcomers and change.stage is not _Stage.COMMITTED:
            why = self._membership.refusal(change.generation.number) or "its output says why"
            self._withdraw(run, f"a new process has ended ({_how(code)}) before it could join: {why}")
        if member in _ids(self._generation):
            if self._change is not None:
                # Those that regroup do not wait for it.
                self._membership.give_up(self._change.generation.number)
            return code != 0
        self._kill_at_s.pop(member, None)
        return False


def _ids(generation: Generation) -> list[str]:
    return [one.id for one in generation.members]


def _num_processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
