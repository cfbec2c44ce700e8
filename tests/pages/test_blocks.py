"""Every block of commands and of Python in the pages is run as it stands, or says why not."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from pollux_slurm.store import open_store
from tests.pages.blocks import PAGES, ROOT, RUN, SHOWN, Block, blocks_of, run_script

ALL = [block for page in PAGES for block in blocks_of(page)]
TO_RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]
LIMIT_S = 600
# Long: reports of a made-up year, rounds solved in several ways, trainings, frames as in the notebooks. All
# are tested elsewhere, too.
IN_FULL = {"month.md", "replay.md", "frames.md", "from-adaptdl.md", "from-lightning.md", "from-trainer.md"}


@pytest.mark.parametrize("block", ALL, ids=str)
def test_that_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.language in (*RUN, *SHOWN), "name the language: console, bash, python, text, ..."
    if block.mark is None:
        return
    found = re.fullmatch(r"run by (?P<test>tests/\S+\.py)|not run: (?P<reason>.+)", block.mark)
    assert found is not None, "write <!-- run by tests/... --> or <!-- not run: reason -->"
    if found["test"]:
        test = (ROOT / found["test"]).read_text(encoding="utf-8")
        assert block.page.name in test, f"{found['test']} does not name the page"


def is_python(block: Block) -> bool:
    return block.is_run and block.language == "python" and block.title is None


@pytest.mark.torch
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.full] if page.name in IN_FULL else []) for page in TO_RUN],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_that_a_pages_blocks_run_in_their_order(page: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/pollux.db"
    open_store(store, create=True).close()
    settings = tmp_path / "pollux.toml"
    settings.touch()
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "POLLUX_CONFIG": str(settings),
        "POLLUX_STORE_URL": store,
        "OMP_NUM_THREADS": "1",
    }
    script, python = ["set -eo pipefail"], [block for block in blocks_of(page) if is_python(block)]
    for number, block in enumerate(blocks_of(page)):
        if block.title is not None:
            (tmp_path / f"block{number}").write_text(block.text, encoding="utf-8")
            script.append(f"cp block{number} {block.title}")
        elif block.is_run and not is_python(block):
            script.append(f"echo '# {block}' >&2\n{block.text}")
        elif python and block == python[-1]:
            # All of a page's Python is one program: what a block names, later ones use.
            text = "\n".join(f"# {one}\n{one.text}" for one in python)
            (tmp_path / "blocks.py").write_text(text, encoding="utf-8")
            script.append("python blocks.py")
    run_script(script, cwd=tmp_path, environ=environ, timeout_s=LIMIT_S)
