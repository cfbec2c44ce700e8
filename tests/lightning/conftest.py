"""Ranks are forked from a server that has imported Lightning once: that takes seconds."""

from tests.torch import ranks

ranks.PRELOADED.append("lightning.pytorch")
