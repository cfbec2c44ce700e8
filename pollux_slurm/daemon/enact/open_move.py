"""One open reallocation with its job in Slurm and in the store, as read in a tick."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pollux_slurm.model import JobState, ReallocationStep, SlurmJob
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.store.contract.interface import GenerationRecord, JobRecord, Reallocation

Step = ReallocationStep
NOT_OURS = "its Comment does not have the registered terms"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMove:
    """One open reallocation with its job in Slurm and in the store, as read in this tick."""

    reallocation: Reallocation
    job: SlurmJob | None
    record: JobRecord | None
    age_s: float

    @property
    def is_ours(self) -> bool:
        """Whether Slurm's job with this id is the registered one."""
        return self.job is not None and self.record is not None and is_recorded_job(self.job, self.record)

    @property
    def job_id(self) -> str:
        return self.reallocation.slurm_job_id

    @property
    def generation(self) -> GenerationRecord | None:
        """The generation that a move in place asked for last."""
        found = () if self.record is None else self.record.generations
        return next((one for one in found if one.number == self.reallocation.generation), None)

    def change_of_running_job(self) -> str | None:
        """Return why the job is not the running job that the move was planned for; None where it is."""
        job = self.job
        if job is None or job.state.is_over:  # checked first: an ended job has no active record, either
            return f"the job is {job.state.value if job else 'gone'}"
        if not self.is_ours:
            return NOT_OURS
        if job.state is not JobState.RUNNING:
            return f"the job is {job.state.value}"
        if job.restart_count != self.reallocation.from_restart_count:
            return "the job was requeued externally"
        return None

    def at(self, step: Step) -> OpenMove:
        """Return the move with its reallocation at `step`, as the journal has it now."""
        return dataclasses.replace(self, reallocation=dataclasses.replace(self.reallocation, step=step))


def has_target_shape(job: SlurmJob, reallocation: Reallocation) -> bool:
    """Whether a job asks for what its reallocation is to give it."""
    target = reallocation.target
    return job.requested_gpus == target.num_gpus and {*job.required_nodes} == {*target.nodes}
