"""Warnings that a job can report. Untrusted clients send names only; the texts are made here."""

from __future__ import annotations

import enum


class JobWarning(str, enum.Enum):
    """A problem with a job's training that its owner must know of. Reports carry the value, never a text."""

    REPLICAS_DIFFER = "replicas_differ"
    NEVER_STEPPED = "never_stepped"
    DISK_FULL = "disk_full"

    @property
    def sentence(self) -> str:
        """What is wrong, for people."""
        return _WORDS[self][0]

    @property
    def cure(self) -> str:
        """What to do about it."""
        return _WORDS[self][1]


_WORDS: dict[JobWarning, tuple[str, str]] = {
    JobWarning.REPLICAS_DIFFER: (
        "the weights of its replicas differ, so that it trains another model than one GPU would",
        "give every optimizer that steps the model to AdaptiveDataParallel, call the wrapped model and not "
        "the one inside, and wrap it after its layers are frozen or unfrozen; try: pollux rehearse -- "
        "python <script>",
    ),
    JobWarning.NEVER_STEPPED: (
        "no wrapped optimizer steps in a loop over an AdaptiveDataLoader, so that nothing is known of its "
        "training",
        "train the model through AdaptiveDataParallel(model, optimizer) and step that optimizer in a loop "
        "over an AdaptiveDataLoader; for Lightning, Trainer and Accelerate see docs/frameworks.md; try: "
        "pollux rehearse -- python <script>",
    ),
    JobWarning.DISK_FULL: (
        "the disk of its checkpoints, or its owner's quota, had no room for another one: until it has, the "
        "job cannot be moved, and loses work where it is stopped",
        "free some space there, or submit with --checkpoint-dir on another disk",
    ),
}
