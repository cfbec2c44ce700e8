"""Hugging Face's Accelerator and Trainer over the training library: their loops, our steps and checkpoints.

May be imported by scripts that train. `transformers` is imported only where a Trainer is asked for.
"""

from typing import TYPE_CHECKING, Any

from pollux_slurm.extras import extras_named

with extras_named():
    from pollux_slurm.huggingface.accelerator import PolluxAccelerator

if TYPE_CHECKING:
    from pollux_slurm.huggingface.trainer import PolluxSeq2SeqTrainer, PolluxTrainer, PolluxTrainerMixin

__all__ = ["PolluxAccelerator", "PolluxSeq2SeqTrainer", "PolluxTrainer", "PolluxTrainerMixin"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extras_named():
        from pollux_slurm.huggingface import trainer
    return getattr(trainer, name)
