"""Restore the parameter groups of an optimizer, some of which a script adds in a later epoch.

After a restart the script makes the optimizer with its first groups, and a branch like `if epoch == 3` may
never run again. So checkpoints name each group's parameters, and groups that the script has not made (yet)
are added when a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from pollux_slurm.torch.wrapped_model.patching import patch


class ParameterGroups:
    """The groups of one optimizer over the parameters of `model`."""

    def __init__(self, optimizer: Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        # The parameters of each restored group that the script has not added in this process.
        self._awaited: list[set[int]] = []
        patch(optimizer, "add_param_group", self._add)

    def state_dict(self) -> dict[str, Any]:
        """Return the names of each group's parameters, None for one outside of the model."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return {
            "names": [
                [names.get(id(parameter)) for parameter in group["params"]]
                for group in self._optimizer.param_groups
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add the missing groups, with parameters only; the optimizer's own state brings the rest.

        Raises `ValueError` where one has parameters that the model does not.
        """
        parameters = dict(self._model.named_parameters())
        first = self._optimizer.param_groups[0]
        for names in state["names"][len(self._optimizer.param_groups) :]:
            missing = [name for name in names if name not in parameters]
            if missing:
                raise ValueError(
                    f"a parameter group was added to the optimizer, and {len(missing)} of its parameters are "
                    "not the model's: give it to the optimizer before AdaptiveDataParallel"
                )
            added = [(name, parameters[name]) for name in names]
            is_named = "param_names" in first
            self._optimizer.add_param_group({"params": added if is_named else [p for _, p in added]})
            self._awaited.append({id(parameter) for _, parameter in added})

    def _add(self, original: Callable[..., Any], param_group: dict[str, Any]) -> None:
        """Add a group, unless it was restored from a checkpoint already."""
        given = param_group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        added = {id(parameter) for parameter in _without_names(given)}
        if added in self._awaited:
            self._awaited.remove(added)
        else:
            original({**param_group, "params": given})


def restore(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load an optimizer's state, and let one inside of it (Lookahead) share it as before.

    `load_state_dict` makes `state` and `param_groups` anew, so that the one inside would go on with its own.
    """
    shared = [
        (one, key, value)
        for one in vars(optimizer).values()
        if isinstance(one, Optimizer)
        for key, value in [("state", one.state), ("param_groups", one.param_groups)]
        if value is getattr(optimizer, key)
    ]
    optimizer.load_state_dict(saved)
    for one, key, value in shared:
        if getattr(one, key) is value:
            setattr(one, key, getattr(optimizer, key))


def _without_names(given: Iterable[Any]) -> Iterable[Any]:
    return (one[1] if isinstance(one, tuple) else one for one in given)
