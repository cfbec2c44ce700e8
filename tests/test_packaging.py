"""A wheel built from this tree works away from it: with its templates and SQL, without torch and Slurm."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent

PROBE = """
import sys
for name in ("torch", "pyslurm", "psycopg"):
    sys.modules[name] = None          # importing any of them now raises ImportError
import pollux_slurm
from pollux_slurm.resources import resource_dir
package = pollux_slurm.__file__
for kind, pattern in (("templates", "*.j2"), ("sql", "**/*.sql")):
    found = sorted(resource_dir(kind).glob(pattern))
    assert found, f"no {pattern} in {resource_dir(kind)}"
    assert all(str(file).startswith(package.rsplit("/", 1)[0]) for file in found), found
print(package)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out)]
    subprocess.run([*pip, str(ROOT)], check=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, timeout=300)
    return target


def run_installed(
    installed: Path, cwd: Path, *command: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environ = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(cwd), **(env or {})}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=300
    )


def test_that_an_installed_wheel_finds_its_own_templates_and_sql(installed: Path, tmp_path: Path) -> None:
    done = run_installed(installed, tmp_path, "-c", PROBE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(installed))


def test_that_an_installed_wheel_creates_a_store(installed: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pollux.db"
    done = run_installed(installed, tmp_path, str(installed / "bin/pollux"), "db", "init", "--store", url)
    assert done.returncode == 0, done.stderr
    done = run_installed(installed, tmp_path, str(installed / "bin/pollux"), "status", "--store", url)
    assert (done.returncode, done.stderr) == (0, "")


def test_that_the_wheel_holds_no_tests_and_every_template(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith(("tests/", "examples/"))]
    for template in (ROOT / "templates").rglob("*.*"):
        assert f"pollux_slurm/templates/{template.relative_to(ROOT / 'templates')}" in names
    for query in (ROOT / "sql").rglob("*.sql"):
        assert f"pollux_slurm/sql/{query.relative_to(ROOT / 'sql')}" in names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "no store is configured"),
        (["daemon", "--once"], "no store is configured"),
        (["run"], "command"),
        (["sandbox", "status", "--dir", "/nowhere/at/all"], "/nowhere/at/all"),
        (["sbatch", "/nowhere/script.sh"], "/nowhere/script.sh"),
    ],
)
def test_that_without_slurm_and_store_an_error_is_one_clear_line(
    installed: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    empty_path = {"PATH": str(tmp_path)}
    done = run_installed(installed, tmp_path, str(installed / "bin/pollux"), *arguments, env=empty_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
