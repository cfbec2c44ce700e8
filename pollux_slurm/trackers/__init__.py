"""One run in W&B, MLflow or TensorBoard over all moves of a job, with what the moves did to training.

`lightning_callback.py` and `transformers_callback.py` need these packages; nothing else here does.
May be imported by `lightning`, `huggingface`, and by scripts that train.
"""

from pollux_slurm.trackers.tracker import Tracker

__all__ = ["Tracker"]
