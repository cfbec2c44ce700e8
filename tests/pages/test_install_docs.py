"""The installation commands of README and guides."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def pip_lines(word: str) -> list[tuple[str, str]]:
    """Return (page, command) of every command of pip in the pages that has `word`."""
    text = re.compile(rf"(?:\S*/)?pip {word} [^\n`]*")
    return [(page.name, line) for page in PAGES for line in text.findall(page.read_text())]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what an installation needs of a checkout, and the wheel that the guide makes in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pollux_slurm", "templates", "sql"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    ((_, command),) = pip_lines("wheel")
    pip(command, folder)
    return folder


def pip(command: str, cwd: Path, *more: str) -> str:
    """Run a command of pip in `cwd`, offline: with the build backend that is here, without dependencies."""
    words = [word for word in shlex.split(command)[1:] if word != "--no-deps"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--no-deps", "--no-build-isolation", *more],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr, command
    return done.stdout


EXTRAS = re.compile(r"\[([\w,]+)\]")


def installations() -> list[str]:
    """Return the commands in the pages; those that differ in their extras alone are one with all of these."""
    lines = [line for _, line in pip_lines("install")]
    extras = {extra for line in lines for found in EXTRAS.findall(line) for extra in found.split(",")}
    everything = f"[{','.join(sorted(extras))}]"
    # The same command of another path's pip is run once.
    by_words = {tuple(shlex.split(line)[1:]): line for line in (EXTRAS.sub(everything, one) for one in lines)}
    return list(by_words.values())


@pytest.mark.parametrize("command", installations())
def test_that_an_installation_command_works_from_a_checkout(command: str, checkout: Path) -> None:
    assert "Would install pollux-slurm-" in pip(command, checkout, "--dry-run", "--force-reinstall")


def test_that_no_page_installs_the_package_from_an_index() -> None:
    told = [*PAGES, ROOT / "CHANGELOG.md", *ROOT.glob("pollux_slurm/**/*.py"), *ROOT.glob("tests/**/*.py")]
    by_name = re.compile(r"pip install [^\n]*(?<!dist/)\bpollux[-_]" + "slurm")
    assert [str(path) for path in told if by_name.search(path.read_text())] == []


def test_that_the_daemons_user_and_its_login_have_the_name_that_the_unit_has() -> None:
    page = "".join((ROOT / "docs" / name).read_text() for name in ("install.md", "postgresql.md"))
    unit = (ROOT / "templates" / "pollux-daemon.service").read_text()
    (user,) = re.findall(r"^User=(\w+)$", unit, re.MULTILINE)
    assert re.findall(r"useradd .* (\w+)\n", page) == [user]
    assert re.findall(r"db login (\w+) --role daemon", page) == [user]
    assert re.findall(r"sudo -u (\w+) pollux db init --store sqlite", page) == [user]


def test_that_the_guides_say_how_to_install() -> None:
    assert {page for page, _ in pip_lines("install")} >= {"README.md", "install.md", "user.md"}
