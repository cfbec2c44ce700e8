"""The store's accounts agree with Slurm's own, job by job, over the short mixture: see `make check-books`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.store.contract.interface import Store
from tests.books.check import by_log, by_sacct
from tests.books.compare import Line
from tests.conftest import running_sandbox
from tests.slurm.accounting_site import missing_programs

pytestmark = pytest.mark.slurm
MISSING = ", ".join(missing_programs())


def differences(lines: list[Line]) -> dict[str, tuple[str, ...]]:
    return {line.played.what: line.differences for line in lines if line.differences}


def silent(_text: str) -> None:
    return


def check(store: Store, how: Callable[..., list[Line]]) -> list[Line]:
    with running_sandbox(NodeGroup(num_nodes=3)) as sandbox:
        return how(store, sandbox, limits=False, log=silent)


def test_that_the_books_agree_with_slurmctlds_log(clean_store: Store, slurm_programs: None) -> None:
    lines = check(clean_store, by_log)
    assert differences(lines) == {}
    # Without slurmdbd, the end of a run that was requeued between two rounds is estimated and marked.
    assert {line.played.what for line in lines if line.estimated} <= {
        "is requeued externally and held in the queue, unseen",
        "is requeued externally, and slow to die",
        "is requeued twice between two rounds",
    }
    assert next(line for line in lines if "twice between" in line.played.what).estimated


# The same mixture again, two minutes: `make check-books` has it, too.
@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: apt install slurmdbd mariadb-server-core")
def test_that_the_books_agree_with_sacct(clean_store: Store, slurm_programs: None) -> None:
    lines = check(clean_store, by_sacct)
    assert differences(lines) == {}
    assert [line.played.what for line in lines if line.estimated] == []
