"""Call a function when a backward pass is over, after DistributedDataParallel has set the gradients.

Autograd calls what is queued while a graph runs once all of it has run, in order. DDP queues its own function
in the last of its hooks, after it has called the communication hook: so one that is queued there comes before
DDP's, and one that this one queues comes after it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import Variable

# A private name of torch; FSDP and DDP call it alike (torch 2.2 to 2.13).
_ENGINE = Variable._execution_engine


def call_after_backward(function: Callable[[], None]) -> None:
    """Call `function` once the backward pass under way has set all gradients. Call it in DDP's hook."""
    _ENGINE.queue_callback(lambda: _ENGINE.queue_callback(function))
