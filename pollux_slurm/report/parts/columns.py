"""Columns of several tables, each defined once: who, when, and what of a job, a run or a round.

A table that takes a value from elsewhere replaces `value` only.
"""

from __future__ import annotations

from pollux_slurm.document.columns import Column, Kind

JOB = Column(key="slurm_job_id", title="job", kind=Kind.TEXT)
NAME = Column(key="name", title="name", kind=Kind.TEXT)
USER = Column(key="user_name", title="user", kind=Kind.TEXT)
ACCOUNT = Column(key="account", title="account", kind=Kind.TEXT)
STATE = Column(key="state", title="state", kind=Kind.TEXT)
AT = Column(key="at", title="time (UTC)", kind=Kind.MOMENT)
DAY = Column(key="day", title="day (UTC)", kind=Kind.DAY)
SINCE = Column(key="since", title="from (UTC)", kind=Kind.MOMENT)
UNTIL = Column(key="until", title="to", kind=Kind.MOMENT)
WAITED = Column(key="waited_s", title="waited", kind=Kind.SECONDS)
STANDSTILL_IN_PLACE = Column(key="standstill_s", title="standstill in place", kind=Kind.SECONDS, shown=False)
RUN = Column(key="run", title="run", kind=Kind.COUNT)
ROUND = Column(key="round_id", title="round", kind=Kind.COUNT)
REALLOCATION = Column(key="reallocation_id", title="reallocation", kind=Kind.COUNT, shown=False)
WAY = Column(key="way", title="way", kind=Kind.TEXT)
NUM_GPUS = Column(key="num_gpus", title="GPUs", kind=Kind.COUNT)
NUM_JOBS = Column(key="num_jobs", title="jobs", kind=Kind.COUNT)
NUM_MOVES = Column(key="num_moves", title="moves", kind=Kind.COUNT)
NUM_ROUNDS = Column(key="num_rounds", title="rounds", kind=Kind.COUNT)
NUM_SAMPLES = Column(key="num_samples", title="samples", kind=Kind.COUNT)
GPU_TYPE = Column(key="gpu_type", title="GPU type", kind=Kind.TEXT)
GPU_HOURS = Column(key="gpu_hours", title="GPU hours")
GPUS_STOOD = Column(key="gpus_stood", title="GPUs held", kind=Kind.COUNT)
GPUS_DECIDED = Column(key="gpus_decided", title="GPUs decided", kind=Kind.COUNT)
GOODPUT = Column(key="goodput", title="goodput/s")
EPOCH = Column(key="epoch", title="epoch", kind=Kind.COUNT)
MEASURE = Column(key="measure", title="measure", kind=Kind.TEXT)
MOVE_KIND = Column(key="kind", title="kind", kind=Kind.TEXT)
EFFICIENCY = Column(key="efficiency", title="efficiency", kind=Kind.SHARE)
MEASURED = Column(key="throughput", title="measured (examples/s)")
MEAN_ERROR = Column(key="mean_error", title="mean error", kind=Kind.SHARE)
MEAN_ABS_ERROR = Column(key="mean_abs_error", title="mean error, no signs", kind=Kind.SHARE)
