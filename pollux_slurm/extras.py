"""Packages that only some users need: each is part of an extra of this package (pyproject.toml)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

_EXTRAS = {
    "accelerate": "transformers",
    "lightning": "lightning",
    "mlflow": "trackers",
    "tensorboard": "trackers",
    "torch": "torch",
    "transformers": "transformers",
    "wandb": "trackers",
}

INSTALL_VIEW = "in a checkout of pollux-slurm: pip install '.[view]'"
"""How to install what people who look at things need."""


_OLDEST_TORCH = (2, 6)


def refuse_old_torch(version: str) -> None:
    """Raise `ImportError` for a torch whose `weights_only=True` runs code of a TorchScript archive."""
    numbers = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST_TORCH:
        raise ImportError(
            f"torch {version} runs code that a checkpoint may contain: pip install 'torch>=2.6'", name="torch"
        )


@contextlib.contextmanager
def extras_named() -> Iterator[None]:
    """Let the error of a missing package say which extra installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None and "pip install" not in error.msg:
            error.msg += f"; in a checkout of pollux-slurm: pip install '.[{extra}]'"
        raise
