"""The documentation site: it builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT

# What a page loads: not where its links lead.
_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
_LOADED_BY_STYLE = re.compile(r"""url\(["']?((?:https?:)?//[^"')]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_that_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert _LOADED.findall(page.read_text(encoding="utf-8")) == [], page
    for style in site.rglob("*.css"):
        assert _LOADED_BY_STYLE.findall(style.read_text(encoding="utf-8")) == [], style


def test_that_the_reference_has_every_public_name_of_the_training_library(site: Path) -> None:
    import pollux_slurm.torch

    page = (site / "api" / "torch.html").read_text(encoding="utf-8")
    missing = [
        name for name in pollux_slurm.torch.__all__ if f">{name}<" not in page and f".{name}" not in page
    ]
    assert missing == []
