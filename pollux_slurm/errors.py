"""Every error that pollux_slurm raises on purpose.

PolluxError
├── UsageError                 the caller's arguments are wrong
│   └── NotYetError            they are right later: the job is being moved, or has just begun a run
├── ConfigError                a setting is missing, malformed or out of range
├── SlurmError
│   ├── SlurmUnavailable       no Slurm commands here, or slurmctld does not answer
│   ├── SlurmReadError         Slurm answered, but incompletely
│   └── SlurmCommandError      Slurm refused one command
│       └── JobStateError      the job is not in the state that the command needs
├── SandboxError               the private cluster cannot be started, found or stopped
├── StoreError
│   ├── StoreUnavailable       the database cannot be reached or stays locked
│   │   └── ReportRateError    a job reports too often
│   ├── SchemaVersionError     the database has no schema, or another version's
│   ├── UnknownJobError        no job with this id or token
│   ├── ReportRefusedError     a report fails a check, which the message names
│   └── StaleRunError          the sender is not the job's current run
├── DaemonStoppedError         the daemon was asked to stop before it had finished
├── InterruptedBySignalError   a signal asked a rehearsal to end
├── LeaseLostError             another daemon has the lease: this one must give no command
├── InvalidModelError          impossible fitted parameters or statistics
├── InvalidProblemError        a scheduling problem that contradicts itself
├── ObjectiveError             an objective's function fails, or returns impossible terms
├── CheckpointError
│   ├── DamagedCheckpointError a checkpoint's content does not match its checksum
│   ├── DiskFullError          the disk, or a quota, has no room for a checkpoint
│   └── SupersededRunError     a newer run of the same job has taken over its checkpoints
├── TrainingError              training has a fault, and `strict` makes that an error
├── LaunchError                the training processes cannot be started
│   └── PrivateFileError       others may have written a file that steers a job, or may write in its folder
├── JobFailedError             a submitted function's job ended without a result
│   └── FunctionError          the function raised an exception, or its result cannot be pickled
├── TraceError                 a trace or workload file cannot be read or lacks data
└── SimulationError            an impossible cluster, or a workload that never ends

A message says what happened, to which job, and what to run next. The command line prints it on one line and
exits with `exit_code`; a traceback is a bug.
"""

from __future__ import annotations

import signal


class PolluxError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1


class UsageError(PolluxError):
    """The caller's arguments are wrong or contradict each other."""

    exit_code = 2


class NotYetError(UsageError):
    """What was asked for is possible later: the job is being moved now, or has just begun a run."""


class ConfigError(PolluxError):
    """A setting is missing, malformed or out of range."""

    exit_code = 2


class SlurmError(PolluxError):
    """Base of the errors at the Slurm edge."""


class SlurmUnavailable(SlurmError):  # noqa: N818 - it names a condition
    """No Slurm commands on this machine, or slurmctld does not answer."""


class SlurmReadError(SlurmError):
    """Slurm answered, but incompletely: the round must be skipped."""


class SlurmCommandError(SlurmError):
    """Slurm refused one command."""


class JobStateError(SlurmCommandError):
    """The job is not in the state that the command needs; nothing was changed."""


class SandboxError(PolluxError):
    """The private cluster cannot be started, found or stopped."""


class StoreError(PolluxError):
    """Base of the errors of the database."""


class StoreUnavailable(StoreError):  # noqa: N818 - it names a condition
    """The database cannot be reached, or stays locked past the time-out. Worth trying again later."""


class ReportRateError(StoreUnavailable):
    """A job reports more often than the database takes from one job. Worth trying again later."""


class SchemaVersionError(StoreError):
    """The database has no schema, or the schema of another version."""


class UnknownJobError(StoreError):
    """No job with this id, or none registered yet with this token."""


class ReportRefusedError(StoreError):
    """A report fails a check. The job's last valid report stays in use."""


class StaleRunError(StoreError):
    """The sender is not the job's current run: it must stop writing."""


class DaemonStoppedError(PolluxError):
    """The daemon was asked to stop before it had finished its work."""


class InterruptedBySignalError(PolluxError):
    """A signal asked a command to end before it had finished. The exit code is a shell's, 128 + signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted by {number.name}")
        self.exit_code = 128 + number


class LeaseLostError(PolluxError):
    """Another daemon has the lease: this one must give no command."""


class InvalidModelError(PolluxError):
    """Impossible fitted parameters or gradient statistics (NaN, negative times, ...)."""


class InvalidProblemError(PolluxError):
    """A scheduling problem that contradicts itself."""


class ObjectiveError(PolluxError):
    """An objective's function fails, or returns impossible terms."""


class CheckpointError(PolluxError):
    """Base of the errors of checkpoints."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's content does not match its checksum."""


class DiskFullError(CheckpointError):
    """The disk, or its owner's quota, has no room for a checkpoint."""


class SupersededRunError(CheckpointError):
    """A newer run of the same job has taken over its checkpoints: this one must stop."""


class TrainingError(PolluxError):
    """The training has a fault that its script must fix. Without `strict` it is only logged."""


class LaunchError(PolluxError):
    """The training processes cannot be started."""


class PrivateFileError(LaunchError):
    """A file that steers a job is not its owner's own, or others may write it or in its folder."""


class JobFailedError(PolluxError):
    """A submitted function's job ended without a result. The message has its state and the end of its log."""


class FunctionError(JobFailedError):
    """A submitted function raised an exception, or returned what cannot be pickled.

    `rank` is the first one that failed, `traceback_text` its traceback, `__cause__` the exception itself, if
    that could be pickled.
    """

    def __init__(self, message: str, *, rank: int = 0, traceback_text: str = "") -> None:
        super().__init__(message)
        self.rank, self.traceback_text = rank, traceback_text


class TraceError(PolluxError):
    """A trace, a workload file or sacct's text cannot be read, or lacks the data that is needed."""

    exit_code = 2


class SimulationError(PolluxError):
    """A simulation was given an impossible cluster, or never ends."""
