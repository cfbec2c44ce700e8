"""Columns of several tables, each defined once: who, when, and what of a job, a run or a round.

A table that takes a value from elsewhere replaces `value` only.
"""

from __future__ import annotations

from pollux_slurm.document.columns import Column, Kind

JOB = Column("slurm_job_id", "job", Kind.TEXT)
NAME = Column("name", "name", Kind.TEXT)
USER = Column("user_name", "user", Kind.TEXT)
ACCOUNT = Column("account", "account", Kind.TEXT)
STATE = Column("state", "state", Kind.TEXT)
AT = Column("at", "time (UTC)", Kind.MOMENT)
DAY = Column("day", "day (UTC)", Kind.DAY)
SINCE = Column("since", "from (UTC)", Kind.MOMENT)
UNTIL = Column("until", "to", Kind.MOMENT)
WAITED = Column("waited_s", "waited", Kind.SECONDS)
STANDSTILL_IN_PLACE = Column("standstill_s", "standstill in place", Kind.SECONDS, shown=False)
RUN = Column("run", "run", Kind.COUNT)
ROUND = Column("round_id", "round", Kind.COUNT)
REALLOCATION = Column("reallocation_id", "reallocation", Kind.COUNT, shown=False)
WAY = Column("way", "way", Kind.TEXT)
NUM_GPUS = Column("num_gpus", "GPUs", Kind.COUNT)
NUM_JOBS = Column("num_jobs", "jobs", Kind.COUNT)
NUM_MOVES = Column("num_moves", "moves", Kind.COUNT)
NUM_ROUNDS = Column("num_rounds", "rounds", Kind.COUNT)
NUM_SAMPLES = Column("num_samples", "samples", Kind.COUNT)
GPU_TYPE = Column("gpu_type", "GPU type", Kind.TEXT)
GPU_HOURS = Column("gpu_hours", "GPU hours")
GPUS_STOOD = Column("gpus_stood", "GPUs held", Kind.COUNT)
GPUS_DECIDED = Column("gpus_decided", "GPUs decided", Kind.COUNT)
GOODPUT = Column("goodput", "goodput/s")
EPOCH = Column("epoch", "epoch", Kind.COUNT)
MEASURE = Column("measure", "measure", Kind.TEXT)
KIND = Column("kind", "kind", Kind.TEXT)
EFFICIENCY = Column("efficiency", "efficiency", Kind.SHARE)
MEASURED = Column("throughput", "measured (examples/s)")
MEAN_ERROR = Column("mean_error", "mean error", Kind.SHARE)
MEAN_ABS_ERROR = Column("mean_abs_error", "mean error, no signs", Kind.SHARE)
