"""Each public name of docs/api says what its parameters are, and ends with examples that are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT
from tests.pages.public_names import PAGES, PublicName, public_names
from tests.report.stories import filled_store

pytestmark = pytest.mark.torch

# Their examples would need more than this machine.
WITHOUT_EXAMPLE = {
    "pollux_slurm.functions.job.SubmittedJob.explain": "asks slurmctld and the store about a job that waits",
    "pollux_slurm.functions.job.SubmittedJob.record": "the daemon must have registered the job",
}
QUICK = ("frames.md", "policy.md")
# Their examples import torch or a framework, or start a job's processes: that takes seconds.
SLOW = ("frameworks.md", "submit.md", "torch.md")
LIMIT_S = 600
NOT_IMPERATIVE = {"A", "An", "The", "This", "What", "True", "False", "None", "One", "Whether"}


@pytest.fixture(scope="module")
def shown() -> list[PublicName]:
    return [one for page in PAGES for one in public_names(page)]


def test_that_each_parameter_has_a_line(shown: list[PublicName]) -> None:
    missing = {one.name: sorted(set(one.parameters) - one.described) for one in shown}
    assert {name: parameters for name, parameters in missing.items() if parameters} == {}


def test_that_no_line_is_about_a_parameter_that_is_not_there(shown: list[PublicName]) -> None:
    surplus = {
        one.name: sorted(one.described - set(one.parameters)) for one in shown if "Args:" in one.docstring
    }
    assert {name: parameters for name, parameters in surplus.items() if parameters} == {}


def test_that_each_has_an_example(shown: list[PublicName]) -> None:
    """A method may be in an example of its class."""
    missing = {one.name for one in shown if not one.is_property and not _is_in_example(one, shown)}
    assert missing == set(WITHOUT_EXAMPLE)


def _is_in_example(one: PublicName, shown: list[PublicName]) -> bool:
    if one.owner is None or one.examples:
        return bool(one.examples)
    name = one.name.rpartition(".")[2]
    of_class = [other for other in shown if other is one.owner or other.owner is one.owner]
    code = "".join(example.source for other in of_class for example in other.examples)
    return re.search(rf"\b{name}\(", code) is not None


def test_that_the_first_line_is_a_sentence_that_tells_what_a_call_does(shown: list[PublicName]) -> None:
    first_lines = {one.name: one.docstring.partition("\n")[0] for one in shown}
    assert [name for name, line in first_lines.items() if not line or line[-1] not in ".:"] == []
    words = {one.name: first_lines[one.name].split()[0] for one in shown if not one.is_property}
    assert {name: word for name, word in words.items() if word in NOT_IMPERATIVE or word.endswith("s")} == {}


def test_that_the_pages_with_public_names_are_these() -> None:
    assert {page.name for page in PAGES if any(public_names(page))} == {*QUICK, *SLOW}


@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW)])
def test_that_the_examples_of_a_page_are_true(page: str, store_template: Path, tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX", "SLURM"))} | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "POLLUX_STORE_URL": filled_store(store_template, tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages.public_names", str(ROOT / "docs" / "api" / page)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
