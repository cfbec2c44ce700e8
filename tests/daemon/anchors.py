"""Jobs in place for the daemon's harness: an anchor that submits wings, and ranks that regroup.

The wings are jobs of the in-memory Slurm, the generations are rows of the real store. Everything that an
anchor and its ranks do takes no time: `act` does what is due.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from pollux_slurm.daemon.decide.in_place import members_of
from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.merged_wings import wings_of_start
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import GenerationMember, GenerationState
from pollux_slurm.store.contract.membership import plan_of_member
from tests.daemon.harness import Agent, Harness


class Anchor(Agent):
    """A job in place, which acts for its anchor, its wings and its ranks.

    `brings_wings`, `is_ready` and `regroups` tell how far it goes in a move; with `acts` false it is silent.
    """

    def __init__(
        self, harness: Harness, *, gpus: int, minutes: int = 600, user_id: int = 1000, starts: bool = True
    ) -> None:
        token = f"{user_id}-token-{len(harness.agents)}"
        self.token_hash = hash_token(token)
        terms = JobTerms(token_sha256=self.token_hash, user_id=user_id, min_gpus=1, max_gpus=8, in_place=True)
        job_id = harness.slurm.submit("#!/bin/sh\n", [f"--comment={encode_comment('', terms)}"], [], {})
        harness.slurm.set_job(job_id, user_id=user_id)
        super().__init__(harness, job_id, token)
        self.gpus, self.minutes, self.user_id = gpus, minutes, user_id
        self.brings_wings = self.is_ready = self.regroups = self.acts = True
        self.restart_count = 0
        self._regrouped = 0
        self._own: set[str] = set()
        harness.agents[job_id] = self
        if starts:
            self.start()

    def start(self, *, begin_s: float = 0.0) -> str:
        """Submit the wing that the next start begins with."""
        return self.wing(f"--gpus={self.gpus}", f"--begin=now+{begin_s:g}", plan=0)

    def wing(self, *options: str, plan: int, minutes: int | None = None, user_id: int | None = None) -> str:
        """Submit a wing, or what claims to be one. With `minutes` 0 it asks for no time limit."""
        terms = WingTerms(
            anchor_id=self.job_id, restart_count=self.restart_count, plan=plan, token_sha256=self.token_hash
        )
        given = [
            *options,
            "--cpus-per-gpu=1",
            "--mem-per-gpu=100",
            f"--comment={encode_wing_comment(terms)}",
        ]
        if minutes != 0:
            given.append(f"--time={minutes or self.minutes}")
        number = self.harness.slurm.submit("#!/bin/sh\n", given, [], {})
        self.harness.slurm.set_job(number, user_id=self.user_id if user_id is None else user_id)
        return number

    @property
    def alone(self) -> SlurmJob:
        """The anchor without its wings."""
        found = self.harness.slurm.read_job(self.job_id)
        assert found is not None
        return found

    @property
    def job(self) -> SlurmJob:
        """The anchor, merged with its wings."""
        found = MergingClient(self.harness.slurm).read_job(self.job_id)
        assert found is not None
        return found

    def end_wings(self) -> None:
        """End all wings, as they do without their anchor."""
        for one in self.job.wings:
            if one.state is JobState.RUNNING:
                self.harness.slurm.finish(one.job_id)

    def wings(self) -> list[SlurmJob]:
        """Return the wings of the present start that are not over."""
        return [one for one in wings_of_start(self.job.wings) if not one.state.is_over]

    def act(self) -> None:
        job = self.job
        if not self.acts or self.alone.state is not JobState.RUNNING:
            return
        self.act_on(job)
        states = [one.state for one in wings_of_start(job.wings)]
        if states and all(state.is_over for state in states):
            # All were cancelled: the next start, as after a requeue.
            self.restart_count += 1
            self._regrouped = 0
            self.start(begin_s=121.0)
            return
        # Not registered yet, else.
        with contextlib.suppress(UnknownJobError):
            self._regroup()

    def _regroup(self) -> None:
        store, slurm, at = self.harness.store, self.harness.slurm, self.harness.clock()
        generation = store.agent.generation(
            self.token, after=self._regrouped, restart_count=self.restart_count
        )
        if generation is None:
            return
        plans = Counter(plan_of_member(one.id) for one in generation.members if not one.is_ready)
        (plan,) = plans or (None,)
        wings = {
            one.job_id: one
            for one in self.wings()
            if one.job_id in self._own and f",plan={plan}," in one.comment
        }
        if generation.state is not GenerationState.PLANNED:
            self._regrouped = generation.number
            for number in wings:
                slurm.cancel(number)
            return
        if plan is not None and not wings and self.brings_wings:
            nodes = Counter(one.node_name for one in generation.members if not one.is_ready)
            for node, gpus in nodes.items():
                self._own.add(self.wing("--nodes=1", f"--nodelist={node}", f"--gpus={gpus}", plan=plan))
        if any(one.state is not JobState.RUNNING for one in wings.values()) or not self.is_ready:
            return
        if plan is not None and not wings:
            return
        for one in generation.members:
            if not one.is_ready:
                store.agent.report_ready(
                    self.token, one.id, number=generation.number, restart_count=self.restart_count
                )
        if not self.regroups:
            return
        number = generation.number
        for state, meeting, standstill_s in (
            (GenerationState.COMMITTED, "n0:1", None),
            (GenerationState.REGROUPED, None, 0.4),
        ):
            assert store.agent.advance_generation(
                self.token,
                number,
                state,
                restart_count=self.restart_count,
                at=at,
                meeting=meeting,
                standstill_s=standstill_s,
            )
        self._regrouped = number
        self._end_left(generation.members)

    def _end_left(self, members: Sequence[GenerationMember]) -> None:
        """End the wings that have no process in the generation."""
        train = {one.id for one in members}
        for wing in self.wings():
            if wing.allocation and not any(one.id in train for one in members_of(wing)):
                self.harness.slurm.finish(wing.job_id)
