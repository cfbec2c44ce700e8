"""A job that moves in place in a `FakeSlurm`: the anchor, and what it does with its wings.

    slurm = FakeSlurm([fake_node("n0"), fake_node("n1")], clock=clock)
    job = FakeAnchor(slurm, gpus=2)
    client = MergingClient(slurm)    # shows anchor and wings as one job, to the daemon for example
    job.start()                      # two GPUs, as its owner asks
    job.join("n1", 1, plan=7)        # one more, for reallocation 7
    clock.advance(5)

Wings are jobs of `slurm` like any others: `slurm.cancel`, `slurm.finish`, `slurm.forget` work on their ids.
"""

from __future__ import annotations

from collections import Counter

from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.contract.membership import GenerationRecord, plan_of_member, wing_members
from tests.fakes.slurm import FakeSlurm

_SCRIPT = "#!/bin/sh\n"
NEXT_START_S = 120
"""A later start may not begin sooner, unless a daemon lets it."""


class FakeAnchor:
    """`job_id` is the anchor's; `gpus` is what its owner asks for; `wings` are its wings so far, by id."""

    def __init__(
        self, slurm: FakeSlurm, *, gpus: int = 1, terms: JobTerms | None = None, options: tuple[str, ...] = ()
    ) -> None:
        self.slurm, self.gpus = slurm, gpus
        self.terms = terms or JobTerms(token_sha256="ab" * 32, user_id=1000, max_gpus=8, in_place=True)
        self.options = ("--cpus-per-gpu=1", "--mem-per-gpu=100", *options)
        self.job_id = slurm.submit(_SCRIPT, [f"--comment={encode_comment('', self.terms)}"], [], {})
        slurm.set_job(self.job_id, user_id=self.terms.user_id)
        self.wings: dict[str, WingTerms] = {}
        self.restart_count = -1

    def start(self, *options: str) -> str:
        """Submit the wing that the next start begins with."""
        self.restart_count += 1
        begin = [f"--begin=now+{NEXT_START_S}"] if self.restart_count else []
        return self._submit(0, [f"--gpus={self.gpus}", *begin, *options])

    def join(self, node: str, gpus: int, *, plan: int) -> str:
        """Submit a wing of newcomers."""
        return self._submit(plan, [f"--gpus={gpus}", f"--nodelist={node}"])

    def take_up(self, generation: GenerationRecord) -> list[str]:
        """Submit the wings of the newcomers whose plan has none."""
        known = {terms.plan for terms in self._of_start().values()}
        wanted = Counter((plan_of_member(one.id), one.node_name) for one in generation.members)
        return [
            self.join(node, gpus, plan=plan)
            for (plan, node), gpus in sorted(wanted.items())
            if plan not in known
        ]

    def regroup(self, generation: GenerationRecord) -> None:
        """Let the wings end that have no process in the generation."""
        stay = {member.id for member in generation.members}
        for wing, terms in self._of_start().items():
            job = self.job(wing)
            processes = wing_members(terms.restart_count, terms.plan, job.allocation)
            if job.state is JobState.RUNNING and not stay & {process.id for process in processes}:
                self.slurm.finish(wing)

    def act(self) -> None:
        """Begin the next start where a wing was lost, once all others have ended, too."""
        jobs = [self.job(wing) for wing in self._of_start()]
        if self.job(self.job_id).state is not JobState.RUNNING:
            for job in jobs:
                self.slurm.cancel(job.job_id)
        elif any(job.state in (JobState.CANCELLED, JobState.FAILED) for job in jobs):
            for job in jobs:
                self.slurm.cancel(job.job_id)
            if all(self.job(job.job_id).state.is_over for job in jobs):
                self.start()

    def job(self, job_id: str) -> SlurmJob:
        """Return the anchor, or a wing, alone."""
        found = self.slurm.read_job(job_id)
        assert found is not None
        return found

    def _of_start(self) -> dict[str, WingTerms]:
        return {
            wing: terms for wing, terms in self.wings.items() if terms.restart_count == self.restart_count
        }

    def _submit(self, plan: int, options: list[str]) -> str:
        terms = WingTerms(
            anchor_id=self.job_id,
            restart_count=self.restart_count,
            plan=plan,
            token_sha256=self.terms.token_sha256,
        )
        comment = f"--comment={encode_wing_comment(terms)}"
        wing = self.slurm.submit(_SCRIPT, ["--no-requeue", *self.options, comment, *options], [], {})
        self.slurm.set_job(wing, user_id=self.terms.user_id)
        self.wings[wing] = terms
        return wing
