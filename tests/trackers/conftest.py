"""Sessions leave the logger to pytest here, too."""

from tests.torch.conftest import _own_handler

__all__ = ["_own_handler"]
