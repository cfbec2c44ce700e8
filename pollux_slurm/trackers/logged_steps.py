"""The last step that a tracker's run has got, in a file beside the checkpoints.

A run that was killed has logged steps that its last checkpoint does not have. The next run makes them again.
W&B and MLflow keep all that is logged, so those steps would be there twice, with two values.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from pollux_slurm.errors import PrivateFileError
from pollux_slurm.system.private_files import open_private

_FOLDER = "trackers"


class LoggedSteps:
    """The last logged step of one run of a tracker. Without a directory nothing is kept.

    `last` is the last step of earlier runs. Each logged step is a few bytes into an open file, so that it
    outlives the process; not synced, as the tracker's own values are not.
    """

    def __init__(self, directory: Path | None, run_id: str) -> None:
        self.last = self._newest = 0
        self._file: int | None = None
        if directory is None:
            return
        path = directory / _FOLDER / f"logged-{re.sub('[^A-Za-z0-9-]', '_', run_id)[:128]}"
        with contextlib.suppress(OSError, PrivateFileError):
            path.parent.mkdir(exist_ok=True)
            self._file = open_private(path)
            text = os.pread(self._file, 32, 0)
            self.last = self._newest = int(text) if text.strip().isdigit() else 0

    def note(self, step: int) -> None:
        """Note that a step was logged."""
        if self._file is not None and step > self._newest:
            self._newest = step
            with contextlib.suppress(OSError):
                os.pwrite(self._file, b"%020d\n" % step, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
