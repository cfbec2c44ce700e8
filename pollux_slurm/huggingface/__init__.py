"""Hugging Face's Accelerator and Trainer over the training library: their loops, our steps and checkpoints.

May be imported by scripts that train. `transformers` is imported only where a Trainer is asked for.
"""

from pollux_slurm.huggingface.accelerator import PolluxAccelerator

__all__ = ["PolluxAccelerator"]
