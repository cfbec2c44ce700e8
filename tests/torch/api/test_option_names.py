"""Options that are passed on are refused by the name that was meant."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.api.option_names import refuse_unknown_options

pytestmark = pytest.mark.torch


def own(first: int, *, max_batch_size: int = 0, **further: Any) -> None: ...


def base(device_ids: Any = None) -> None: ...


def test_that_options_of_each_taker_pass() -> None:
    refuse_unknown_options("Thing", ["max_batch_size", "device_ids", "first"], own, base)


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ("max_batchsize", "Thing has no option max_batchsize: do you mean max_batch_size?"),
        ("device_id", "do you mean device_ids?"),
        ("quux", "Thing has no option quux: it has device_ids, first, max_batch_size"),
        # The name that collects the others is no option itself.
        ("further", "Thing has no option further"),
    ],
)
def test_that_an_unknown_option_is_refused_with_the_one_that_was_meant(option: str, cure: str) -> None:
    with pytest.raises(UsageError, match=re.escape(cure)):
        refuse_unknown_options("Thing", [option], own, base)
