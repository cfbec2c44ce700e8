"""What autograd's engine does not tell of a backward pass: when it is over, and what it runs.

**Its end**, after DistributedDataParallel has set the gradients: autograd calls what is queued while a graph
runs once all of it has run, in order. DDP queues its own function in the last of its hooks, after it has
called the communication hook: so one that is queued there comes before DDP's, and one that this one queues
comes after it.

**What it runs**: torch's own code has no effect but the gradients, so it may run once more. Python code may
count, draw random numbers or write buffers. It is in functions of `torch.autograd.Function`, in hooks, and
in what saved tensors are unpacked by, such as activation checkpoints, which call the forward again.

Private names of torch (2.2 to 2.13): `_execution_engine`, `_raw_saved_*`, `SavedTensor.unpack_hook` (of
later ones; without it nothing is known to be free of Python), `_will_engine_execute_node`,
`RemovableHandle.next_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

# FSDP and DDP call it alike.
_ENGINE = Variable._execution_engine
# DistributedDataParallel's own, where it looks for unused parameters. With a static graph it counts.
_SINK = "_DDPSinkBackward"


def call_after_backward(function: Callable[[], None]) -> None:
    """Call `function` once the backward pass under way has set all gradients. Call it in DDP's hook."""
    _ENGINE.queue_callback(lambda: _ENGINE.queue_callback(function))


def num_hooks() -> int:
    """Return how many hooks of tensors, nodes and modules there have been: each gets the next number."""
    return RemovableHandle.next_id


def calls_python(node: Any) -> bool:
    """Return whether a backward pass from `node` on may call Python code, but for hooks."""
    seen, waiting = {node}, [node]
    names: dict[type, list[str]] = {}
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if isinstance(one, BackwardCFunction):
            if kind.__name__ != _SINK or one.ddp_weakref().static_graph:  # type: ignore[attr-defined]
                return True
        else:
            if kind not in names:
                names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
            saved = (tensor for name in names[kind] for tensor in _listed(getattr(one, name)))
            if any(getattr(tensor, "unpack_hook", True) is not None for tensor in saved):
                return True
        for following, _ in one.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def sets_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Return, within a hook, whether the pass under way is `backward` to any parameter, not `grad`."""
    try:
        return any(
            torch._C._will_engine_execute_node(get_gradient_edge(parameter).node) for parameter in parameters
        )
    except RuntimeError:
        # `grad` with the parameters as its inputs.
        return False


def _listed(saved: Any) -> Iterator[Any]:
    if isinstance(saved, tuple | list):
        yield from saved
    elif saved is not None:
        yield saved
