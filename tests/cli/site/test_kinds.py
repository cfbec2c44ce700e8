"""`pollux kinds forget`: a kind by its name, or by the beginning of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pollux_slurm.cli.site.kinds import forget
from pollux_slurm.errors import UsageError
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import at, registration

KINDS = ("ca236c08aaaaaaaa", "ca236d0000000000", "ca236d0000000000-b", "other")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pollux.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url, create=True)) as found:
        jobs = [registration(number, terms={"kind": kind}) for number, kind in enumerate(KINDS, 1)]
        found.jobs.register(jobs, at=at(0))
        yield found


def left(store: Store) -> set[str]:
    return {one.kind for one in store.kinds.all()}


def test_that_the_beginning_of_one_kind_is_enough(store: Store, url: str) -> None:
    forget("ca236c08", store_url=url)
    assert left(store) == {*KINDS[1:]}


def test_that_a_whole_name_is_not_the_beginning_of_another(store: Store, url: str) -> None:
    forget("ca236d0000000000", store_url=url)
    assert left(store) == {KINDS[0], *KINDS[2:]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ca236d", "several kinds begin with ca236d: ca236d0000000000, ca236d0000000000-b"),
        ("ca237", "no job is of kind ca237: pollux kinds list"),
        ("", "no job is of kind : pollux kinds list"),
    ],
)
def test_that_a_beginning_of_several_kinds_or_none_is_refused(
    store: Store, url: str, kind: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        forget(kind, store_url=url)
    assert left(store) == {*KINDS}
