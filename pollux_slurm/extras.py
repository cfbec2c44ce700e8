"""Packages that only some users need: each is part of an extra of this package (pyproject.toml)."""

from __future__ import annotations

import contextlib
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
