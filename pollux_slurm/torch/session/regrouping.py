"""Regroups: members join and leave a training that goes on, at a boundary that all have agreed on.

On all members alike, at such a boundary:

1. The states are synchronized; rank 0 has them in hand, as a checkpoint has them.
2. Rank 0 commits the generation. Withdrawn, or not known to be committed: training goes on as it was.
3. If rank 0 leaves, it hands the states to its successor, one that stays, which takes over rank 0's own.
4. All destroy their process groups. Those that leave end here.
5. The new members meet in a store of the generation's own and make new groups.
6. The new rank 0 claims the next run number, and sends the states to the newcomers.
7. Each part of the session begins the new run, each wrapped model reduces over the new group.

A newcomer comes to 5 from `join_training`, where it has waited with its model made and its data at hand. What
fails from 2 on ends all processes; whoever has the states writes them as a checkpoint first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.agent.environment.rank_environments import place_variables
from pollux_slurm.agent.exit_codes import LeftTraining
from pollux_slurm.agent.membership.generation import Generation, Member, Membership
from pollux_slurm.errors import CheckpointError, LaunchError, PolluxError, StoreUnavailable, UsageError
from pollux_slurm.resources import CODE_REPLACED, code_on_disk
from pollux_slurm.torch.boundary.seams import Seams
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.boundary.step_boundary import ExchangeContext, RegroupPlace
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointer
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.state_transfer import receive_state, send_state
from pollux_slurm.torch.regroup.epoch_replay import EpochReplay
from pollux_slurm.torch.regroup.freed_memory import give_back_freed_memory
from pollux_slurm.torch.regroup.joining_group import init_joining_group
from pollux_slurm.torch.regroup.meeting import meet, open_meeting
from pollux_slurm.torch.regroup.obstacles import Obstacles
from pollux_slurm.torch.regroup.rescue import Rescue
from pollux_slurm.torch.regroup.user_frames import user_frames
from pollux_slurm.torch.session.joining import (
    default_backend,
    job_name,
    side_channel_group,
    verify_peers,
    verify_rank_0,
)

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.005
# All have left their former groups by then, or wait already. A replica that is late by more is not coming.
_MEETING_TIMEOUT_S = 60.0
# The others train on while rank 0 does not know whether it has committed.
_NEWCOMERS_TIMEOUT_S = 600.0


@dataclass(slots=True)
class RegroupTimes:
    """How long the parts of a regroup took, in seconds, in their order."""

    began_s: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    def end(self, part: str) -> None:
        """End a part, which began at the end of the one before."""
        self.parts[part] = time.perf_counter() - self.began_s - sum(self.parts.values())


class Training(Protocol):
    """The training that regroups: this process's part in it, and what becomes another run's."""

    environment: JobEnvironment
    rank: int
    world_size: int
    side_channel: SideChannel[ExchangeContext]
    checkpointer: Checkpointer
    stop: StopFlag

    def leave_run(self) -> None:
        """Let go of all process groups, between two steps."""

    def claim_next_run(self) -> int:
        """Claim, on the new rank 0, the run that follows in memory; return its number."""

    def save_states(self, states: Mapping[str, Any]) -> None:
        """Write the states of a regroup that failed as a checkpoint."""

    def adopt(self, states: Mapping[str, Any]) -> None:
        """Take over the states of the training that this process joins."""

    def begin_run(self, environment: JobEnvironment, *, run_number: int) -> None:
        """Go on as another run, with other replicas."""


class Regrouping:
    """This process's part in the regroups of its training (`Regroups` of the step boundary)."""

    def __init__(
        self,
        training: Training,
        membership: Membership | None,
        *,
        backend: str | None,
        progress: ProgressState,
        seams: Seams,
    ) -> None:
        self._training = training
        self._membership, self._backend = membership, backend
        self._progress, self._seams = progress, seams
        self.is_joining, self.has_left = training.environment.is_joining, False
        self.members: list[str] = []
        self.number = 0
        if membership is not None:
            self.members = training.side_channel.gather(membership.member)
            self.number = membership.joins or 0
        self.replay = EpochReplay(watches=membership is not None)
        self.obstacles = Obstacles(watches=membership is not None)
        self.callbacks: list[Callable[[int, int], object]] = []
        self.times = RegroupTimes()
        # The meeting that this process has opened, by the number of its generation.
        self._opened: tuple[int, Any] | None = None
        self._awaits_step = self._is_told_to_wait = False
        # The plan of a generation that was looked at before its newcomers were ready.
        self._looked_at = 0
        self._code = None if membership is None else code_on_disk()
        self._is_replaced = dict[int, bool]()

    @property
    def _known(self) -> Membership:
        assert self._membership is not None, "nothing was planned without one"
        return self._membership

    def refuse(self, reason: str) -> None:
        """Let this training not regroup, for a reason. Raises `UsageError` in a newcomer."""
        self._seams.note_obstacle(reason)
        if self.is_joining:
            self._known.refuse(self.number, reason)
            raise UsageError(f"this process cannot join the training: {reason}")
        self.obstacles.add(reason)
        if self._membership is not None and self._training.rank == 0:
            # Known before somebody asks: no newcomer is started in vain.
            self._tell(0, reason)

    def _tell(self, number: int, reason: str) -> None:
        """Say why a generation cannot be; 0: none can."""
        self._seams.note_refusal(reason)
        self._known.refuse(number, reason)

    def note_failure(self, error: BaseException) -> None:
        """Report the error that ends a newcomer, for who waits for it."""
        if self.is_joining:
            lines = str(error).splitlines()
            self._known.refuse(self.number, ": ".join([type(error).__name__, *lines[:1]]))

    # --------------------------------------------------------------------------------------- on rank 0

    def wanted(self, place: RegroupPlace) -> int:
        """Return the number of the generation that is to take over soon; 0 for none."""
        if self._membership is None:
            return 0
        plan = self._membership.planned(self.number)
        if plan is None:
            self._refuse_early(self._membership)
            return 0
        has_newcomers = self._has_newcomers(plan)
        reason = self._objection(plan)
        # Newcomers wait for the end of the epoch, where one comes.
        waits = has_newcomers and place is RegroupPlace.STEP and self.replay.reason is not None
        if reason is None and waits and self._progress.epoch is None:
            reason = (
                f"{self.replay.reason}, so replicas could join at the end of an epoch only, and its "
                "epochs are not known: write `for epoch in remaining_epochs_until(num_epochs)`"
            )
        if reason is not None:
            self._tell(plan.number, reason)
        elif waits and not self._is_told_to_wait:
            self._is_told_to_wait = True
            _LOG.info(
                "%s lets replicas join at the end of the epoch: %s",
                *(job_name(self._training.environment), self.replay.reason),
            )
        return 0 if waits or reason is not None else plan.number

    def _refuse_early(self, membership: Membership) -> None:
        """Refuse a plan that cannot be before its newcomers have started: each time they would in vain."""
        plan = membership.announced(self.number)
        if plan is not None and plan.number != self._looked_at:
            self._looked_at = plan.number
            if (reason := self._objection(plan)) is not None:
                self._tell(plan.number, reason)

    def _has_newcomers(self, plan: Generation) -> bool:
        return any(one.id not in self.members for one in plan.members)

    def _objection(self, plan: Generation) -> str | None:
        """Return why this training cannot become a generation, now or later; None where it can."""
        staying = [one for one in self.members if plan.rank_of(one) is not None]
        if not staying or plan.members[0].id != staying[0]:
            return "its first member must be one that stays, which has the states"
        if plan.number not in self._is_replaced:  # files are looked at once for each plan
            self._is_replaced = {plan.number: code_on_disk() != self._code}
        if self._is_replaced[plan.number]:
            # Newcomers would run other code, and what stays would meet it in the store.
            return CODE_REPLACED
        reason = self.obstacles.find(
            list(user_frames()),
            rank_changes=staying != self.members[: len(staying)],
            hears=bool(self.callbacks),
        )
        if reason is not None or not self._has_newcomers(plan):
            return reason
        if self.replay.varies and not self.callbacks:
            call = self.replay.varying_call
            return (
                f"it {'communicates' if call is None else f'calls {call}'} in some steps only, by a count "
                "that newcomers would begin anew: do it in each step, or count by "
                "pollux_slurm.torch.finished_steps() and call on_regroup"
            )
        if self.replay.lasting_reason is not None:
            return f"replicas can no longer join: {self.replay.lasting_reason}"
        return None

    # ----------------------------------------------------------------------------------- on all members

    def regroup(self, number: int) -> bool:
        """Go on as another generation; False if it was withdrawn, and nothing has changed.

        Raises `LeftTraining` on those that leave, `LaunchError` where the new members do not come together.
        """
        training, side = self._training, self._training.side_channel
        self.times = RegroupTimes()
        try:
            states = training.checkpointer.collect()
        except CheckpointError as error:
            if side.rank == 0:
                self._tell(number, str(error))
            return False
        self.times.end("states")
        with self._rescue(number, states) as rescue:
            generation = self._commit(number)
            if generation is None:
                return False
            rescue.watch()
            self.times.end("commit")
            successor = self.members.index(generation.members[0].id)
            if successor != 0 and side.rank == 0:
                send_state(states, to=[successor], group=side.group)
            elif successor != 0 and side.rank == successor:
                rescue.states = receive_state(src=0, group=side.group)
                training.checkpointer.take_over(rescue.states)
            # Nobody destroys a group that another still uses.
            side.gather(0)
            self.times.end("hand over")
            training.leave_run()
            if generation.rank_of(self._known.member) is None:
                self.has_left = True
                # For a script that destroys its process group in a `finally` block.
                init_joining_group(rank=0, world_size=1)
                raise LeftTraining
            self._begin(generation, rescue.states)
        del rescue
        give_back_freed_memory()
        self.times.end("free")
        self._call_back()
        return True

    @contextlib.contextmanager
    def _rescue(self, number: int, states: Mapping[str, Any] | None) -> Iterator[Rescue]:
        """Save the states where the block fails, which ends this process.

        Raises `LaunchError` then; `TrainingStopped` where SIGTERM has come.
        """
        training = self._training
        rescue = Rescue(
            states,
            save=training.save_states,
            is_given_up=lambda: self._known.is_given_up(number),
        )
        try:
            yield rescue
        except (PolluxError, RuntimeError) as error:
            rescue.end()
            rescue.save()
            problem = (
                f"{job_name(training.environment)} could not go on with other replicas "
                f"({str(error).splitlines()[0]})"
            )
            if training.stop.is_set:
                _LOG.error("%s, and is stopped", problem)
                training.stop.raise_stopped()
            raise LaunchError(f"{problem}; start it again: it goes on from its checkpoint") from error
        finally:
            rescue.end()

    def _call_back(self) -> None:
        for callback in self.callbacks:
            callback(self._training.rank, self._training.world_size)

    def _commit(self, number: int) -> Generation | None:
        """Commit a generation on rank 0, for all; None where it is not known to be committed."""
        found: Any = None
        is_planned, address = self._open_meeting(number)
        if self._training.rank == 0 and is_planned and not self._is_refused(number):
            try:
                if self._known.commit(number, address):
                    committed = self._known.committed(number)
                    if committed is not None:
                        found = [[one.id, one.node] for one in committed.members], committed.meeting
            except StoreUnavailable as error:
                _LOG.warning("the replicas go on as they are: %s", error)
        found = self._training.side_channel.broadcast(found)
        if found is None:
            return None
        named, meeting = found
        members = tuple(Member(id=name, node=node) for name, node in named)
        return Generation(number=number, members=members, meeting=meeting)

    def _is_refused(self, number: int) -> bool:
        """Return whether to collect the states has found a reason against any regroup."""
        reason = self.obstacles.known_reason
        if reason is not None:
            self._tell(number, reason)
        return reason is not None

    def _open_meeting(self, number: int) -> tuple[bool, str | None]:
        """Open the meeting of a generation on the first member that stays.

        Returns whether it is planned still, and the address of the meeting; None for a file, which needs no
        opening. The address stays the same while it is not known whether the generation is committed, because
        its newcomers may wait there.
        """
        host = self._known.host
        if host is None:
            return True, None
        side, first, address = self._training.side_channel, None, None
        plan = self._known.planned(self.number) if side.rank == 0 else None
        if plan is not None and plan.number == number:
            first = self.members.index(plan.members[0].id)
        first = side.broadcast(first)
        if first == side.rank:
            if self._opened is None or self._opened[0] != number:
                self._opened = number, open_meeting(host)
            address = f"{host}:{self._opened[1].port}"
        return first is not None, None if first is None else side.gather(address)[first]

    def join_training(self) -> None:
        """On a newcomer, before its first loop: wait for the generation it was started for, and join it."""
        if not self.is_joining:
            return
        training, number = self._training, self.number
        self._known.report_ready()
        while True:
            # Read first: who stops the processes has withdrawn the plan before, or it is committed.
            is_stopped = training.stop.is_set
            generation = self._known.committed(number)
            if generation is not None:
                break
            if is_stopped:
                training.stop.raise_stopped()
            if self._known.is_given_up(number):
                raise LeftTraining
            time.sleep(_POLL_INTERVAL_S)
        self.times = RegroupTimes()
        with self._rescue(number, None) as rescue:
            rescue.watch()
            training.leave_run()
            self._begin(generation, None)
        self._call_back()

    def _begin(self, generation: Generation, states: Mapping[str, Any] | None) -> None:
        training, was_joining = self._training, self.is_joining
        environment = self._environment(generation)
        backend = self._backend or default_backend(environment)
        assert generation.meeting is not None, "it is committed"
        # The group keeps the store from then on.
        opened, self._opened = self._opened, None
        meet(
            generation.meeting,
            opened=opened[1] if opened is not None and opened[0] == generation.number else None,
            verify=lambda store: verify_rank_0(store, environment, generation=generation.number),
            rank=environment.rank,
            world_size=environment.world_size,
            backend=backend,
            is_given_up=lambda: self._known.is_given_up(generation.number),
            timeout_s=_NEWCOMERS_TIMEOUT_S if was_joining else _MEETING_TIMEOUT_S,
        )
        if backend == "gloo" and environment.world_size > 1:
            verify_peers(environment, f"gradients {generation.number}", None)
        self.times.end("meet")
        side = training.side_channel
        side.begin_run(
            rank=environment.rank,
            world_size=environment.world_size,
            group=side_channel_group(environment, generation=generation.number),
        )
        run_number = side.broadcast(training.claim_next_run() if side.rank == 0 else None)
        self.times.end("groups")
        newcomers = [rank for rank, is_new in enumerate(side.gather(was_joining)) if is_new]
        if was_joining:
            training.adopt(receive_state(src=0, group=side.group))
        elif newcomers and side.rank == 0:
            send_state(states, to=newcomers, group=side.group)
        self.times.end("send states")
        self.number, self.is_joining = generation.number, False
        self.members = [one.id for one in generation.members]
        training.begin_run(environment, run_number=run_number)
        # What was communicated until now is no code of the script's.
        self.replay.begin_run()
        self.times.end("begin")
        self._awaits_step = True

    def _environment(self, generation: Generation) -> JobEnvironment:
        """Return this process's place in a generation, and set its environment variables."""
        rank = generation.rank_of(self._known.member)
        assert rank is not None
        nodes = list(dict.fromkeys(one.node for one in generation.members))
        node_index = nodes.index(generation.members[rank].node)
        counts = generation.gpus_per_node
        os.environ.update(place_variables(counts, node_index=node_index, rank=rank))
        return replace(
            self._training.environment,
            rank=rank,
            world_size=len(generation.members),
            gpus_per_node=counts,
            is_joining=False,
        )

    def close(self, *, timeout_s: float) -> None:
        """Send what is still to be said: the process ends."""
        if self._membership is not None:
            self._membership.close(timeout_s=timeout_s)

    def note_step(self) -> None:
        """Report a generation's first step (or batch, or the end of a loop), and the time until it."""
        if not self._awaits_step:
            return
        self._awaits_step = False
        if self._training.rank == 0:
            standstill_s = time.perf_counter() - self.times.began_s
            self._known.report_regrouped(self.number, standstill_s=standstill_s)
            _LOG.info(
                "%s goes on with %d replica%s after %.2f s without a step",
                *(job_name(self._training.environment), self._training.world_size),
                *("" if self._training.world_size == 1 else "s", standstill_s),
            )
