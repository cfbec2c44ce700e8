"""Let processes join and leave a run on this machine while it trains, as `pollux resize` asks.

One request is carried out at a time:

- **starting**: newcomers have been started. They import, build and load while the others train.
- **planned**: all newcomers are ready, and rank 0 sees the plan. Until it commits, the plan can be withdrawn,
  and nobody has noticed anything.
- **committed**: the members regroup. From here on, a member that fails ends the run.

It ends with the first step of the new members.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pollux_slurm.agent.launch.layout import (
    JOINS_VARIABLE,
    MEMBER_VARIABLE,
    MEMBERSHIP_VARIABLE,
    RENDEZVOUS_VARIABLE,
    RunLayout,
)
from pollux_slurm.agent.launch.rank_environments import rank_environments
from pollux_slurm.agent.launch.watched_processes import WatchedProcesses
from pollux_slurm.agent.membership.folder import MembershipFolder, ResizeRequest
from pollux_slurm.agent.membership.generation import Generation, Member

# Newcomers that are not ready by then are ended, and a plan that rank 0 has not taken up is withdrawn.
_READY_TIMEOUT_S = 600.0
_PLAN_TIMEOUT_S = 3600.0


class _Stage(Enum):
    STARTING = "starting"
    PLANNED = "planned"
    COMMITTED = "committed"


@dataclass(slots=True)
class _Change:
    """A request that is being carried out."""

    request: ResizeRequest
    generation: Generation
    newcomers: frozenset[str]
    stage: _Stage
    since_s: float


class Resizing:
    """The membership of a run's processes. `max_processes` is None where no GPU limits their number."""

    def __init__(
        self,
        folder: MembershipFolder,
        layout: RunLayout,
        environ: Mapping[str, str],
        *,
        max_processes: int | None,
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._layout, self._environ = folder, layout, environ
        self._max_processes, self._warn, self._monotonic = max_processes, warn, monotonic
        self._node = layout.nodes[0][0]
        first = tuple(Member(id=str(index), node=self._node) for index in range(layout.world_size))
        self._generation = Generation(number=0, members=first)
        self._num_started = len(first)
        self._change: _Change | None = None
        # By member: its local rank, and its process once it was started.
        self._local_ranks = {one.id: index for index, one in enumerate(first)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving: set[str] = set()

    def first_environments(self, environments: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return the environments of the first members, which extend those given."""
        return [
            {**environment, **self._variables(member.id)}
            for member, environment in zip(self._generation.members, environments, strict=True)
        ]

    def _variables(self, member: str) -> dict[str, str]:
        return {MEMBERSHIP_VARIABLE: str(self._folder.folder), MEMBER_VARIABLE: member}

    def note_started(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Note the first members' processes."""
        ids = [one.id for one in self._generation.members]
        self._processes = dict(zip(ids, processes, strict=True))

    # ---------------------------------------------------------------------------------------- each moment

    def advance(self, processes: WatchedProcesses) -> None:
        """Do what is due. Called again and again while the processes run."""
        if not any(one in self._processes for one in self._ids(self._generation)):
            self.end()
        elif self._change is None:
            request = self._folder.next_request()
            if request is not None:
                self._begin(request, processes)
        else:
            self._go_on(self._change)

    def _go_on(self, change: _Change) -> None:
        number = change.generation.number
        waited_s = self._monotonic() - change.since_s
        if change.stage is _Stage.STARTING:
            if all(self._folder.is_ready(one) for one in change.newcomers):
                self._folder.write_plan(change.generation)
                change.stage, change.since_s = _Stage.PLANNED, self._monotonic()
            elif waited_s > _READY_TIMEOUT_S:
                self._withdraw(f"the new processes were not ready after {_READY_TIMEOUT_S:g} s")
        elif change.stage is _Stage.PLANNED:
            refusal = self._folder.refusal(number)
            if self._folder.committed(number) is not None:
                self._leaving |= set(self._ids(self._generation)) - set(self._ids(change.generation))
                self._generation, change.stage = change.generation, _Stage.COMMITTED
            elif refusal is not None:
                self._withdraw(f"the script cannot be moved in place: {refusal}")
            elif waited_s > _PLAN_TIMEOUT_S:
                self._withdraw(f"the script came to no step within {_PLAN_TIMEOUT_S:g} s")
        else:
            standstill_s = self._folder.standstill_s(number)
            if standstill_s is not None:
                count = len(self._generation.members)
                text = (
                    f"{count} process{'es' if count > 1 else ''}, after {standstill_s:.2f} s without a step"
                )
                self._folder.answer(change.request, is_done=True, text=text)
                self._change = None

    def _ids(self, generation: Generation) -> list[str]:
        return [one.id for one in generation.members]

    def _begin(self, request: ResizeRequest, processes: WatchedProcesses) -> None:
        members = list(self._generation.members)
        problem = self._problem(request)
        if problem is not None:
            self._folder.answer(request, is_done=False, text=problem)
            return
        leaving = {members[rank].id for rank in request.leaves}
        staying = [one for one in members if one.id not in leaving][: request.num_processes]
        if len(staying) == request.num_processes == len(members):
            self._folder.answer(request, is_done=True, text=f"{len(members)} processes already")
            return
        newcomers = []
        for _ in range(request.num_processes - len(staying)):
            newcomers.append(Member(id=str(self._num_started), node=self._node))
            self._num_started += 1
        generation = Generation(
            number=self._folder.next_number(self._generation.number), members=(*staying, *newcomers)
        )
        self._change = _Change(
            request=request,
            generation=generation,
            newcomers=frozenset(one.id for one in newcomers),
            stage=_Stage.STARTING,
            since_s=self._monotonic(),
        )
        for one in newcomers:
            self._processes[one.id] = processes.start(self._newcomers_environment(one, generation))

    def _problem(self, request: ResizeRequest) -> str | None:
        count = len(self._generation.members)
        if self._max_processes is not None and request.num_processes > self._max_processes:
            return f"this machine has {self._max_processes} GPUs"
        unknown = [rank for rank in request.leaves if not 0 <= rank < count]
        if unknown:
            return f"there is no replica {unknown[0]}: they are 0 to {count - 1}"
        if len(set(request.leaves)) == count:
            return "all replicas were to leave: one must stay, because it has the training in memory"
        return None

    def _newcomers_environment(self, member: Member, generation: Generation) -> dict[str, str]:
        rank = generation.rank_of(member.id)
        assert rank is not None
        count = len(generation.members)
        layout = replace(self._layout, nodes=((self._node, count),))
        taken = {self._local_ranks[name] for name in self._processes if name in self._local_ranks}
        self._local_ranks[member.id] = next(free for free in range(len(taken) + 1) if free not in taken)
        environment = rank_environments(layout, 0, self._environ)[rank]
        environment.pop(RENDEZVOUS_VARIABLE, None)
        return environment | {
            "LOCAL_RANK": str(self._local_ranks[member.id]),
            JOINS_VARIABLE: str(generation.number),
            **self._variables(member.id),
        }

    # ------------------------------------------------------------------------------------- ended processes

    def ends_run(self, process: subprocess.Popen[bytes], code: int) -> bool:
        """Take note of a process that has ended; return whether the run fails with it."""
        member = next((name for name, known in self._processes.items() if known is process), None)
        if member is None:
            return code != 0
        del self._processes[member]
        change = self._change
        if change is not None and member in change.newcomers and change.stage is not _Stage.COMMITTED:
            # Committed in this very moment, the run is lost with it.
            return not self._withdraw(f"a new process has ended with exit code {code} before it could join")
        if code != 0 and change is not None:
            self._folder.give_up(change.generation.number)
        return code != 0

    def _withdraw(self, reason: str) -> bool:
        """End a change that is not committed, and its newcomers; False if it has just been committed."""
        assert self._change is not None
        change = self._change
        if not self._folder.withdraw(change.generation.number):
            self._folder.give_up(change.generation.number)
            return False
        self._warn(f"the processes go on as they were: {reason}")
        self._folder.answer(change.request, is_done=False, text=reason)
        self._change = None
        return True

    def unwanted(self, running: Sequence[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
        """Return the newcomers of a change that was withdrawn: they are to be ended."""
        wanted = set(self._ids(self._generation)) | self._leaving
        if self._change is not None:
            wanted |= self._change.newcomers
        names = [name for name in self._processes if name not in wanted]
        ended = [self._processes.pop(name) for name in names]
        return [process for process in ended if process in running]

    def end(self) -> None:
        """End the newcomers of a change that is not committed: the training is over."""
        if self._change is not None and self._change.stage is not _Stage.COMMITTED:
            self._withdraw("the run has ended")
