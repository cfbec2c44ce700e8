"""Modules whose code waits, in a Python of their own: this one has long run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, folder: Path) -> list[str]:
    """Return the lines that Python code prints which can import what stands in `folder`."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A package of which one module imports two others, each of which says when its code is run."""
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("needed", "unused"):
        (package / f"{name}.py").write_text(f"print('runs {name}')\nvalue = '{name}'\n")
    (package / "whole.py").write_text("from made_up import needed, unused\n")
    return tmp_path


def test_that_code_is_run_at_the_first_use(modules: Path) -> None:
    code = """
from pollux_slurm.put_off import put_off
before = list(sys.meta_path)
with put_off(["made_up.unused", "made_up.not_there"]):
    from made_up import whole
print("imported", sys.meta_path == before)
print(whole.unused.value, whole.unused.value)
"""
    assert run(code, modules) == ["runs needed", "imported True", "runs unused", "unused unused"]


def test_that_a_module_that_was_run_before_stays_as_it_is(modules: Path) -> None:
    code = """
from pollux_slurm.put_off import put_off
from made_up import unused
with put_off(["made_up.unused"]):
    from made_up import whole
print(whole.unused is unused)
"""
    assert run(code, modules) == ["runs unused", "runs needed", "True"]


def test_that_an_error_on_the_way_leaves_imports_as_they_were(modules: Path) -> None:
    (modules / "made_up" / "whole.py").write_text("import made_up.not_there\n")
    code = """
from pollux_slurm.put_off import put_off
before = list(sys.meta_path)
try:
    with put_off(["made_up.not_there"]):
        from made_up import whole
except ModuleNotFoundError as error:
    print(error.name, sys.meta_path == before)
"""
    assert run(code, modules) == ["made_up.not_there True"]


TRIANGULATION = """
import sys
import numpy as np
from pollux_slurm.put_off import UNUSED_BY_SIMULATIONS, put_off
from pollux_slurm.simulator.interpolation import linear_interpolator
corners = np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)], dtype=float)
"""


def test_that_simulations_need_none_of_what_is_put_off_for_them_and_leave_scipy_usable(
    tmp_path: Path,
) -> None:
    code = """
with put_off(UNUSED_BY_SIMULATIONS):
    print(linear_interpolator(corners, corners[:, :1])((0.25, 0.25, 0.25)))
waiting = [name for name in UNUSED_BY_SIMULATIONS if type(sys.modules[name]).__name__ == "_LazyModule"]
print(waiting == list(UNUSED_BY_SIMULATIONS), "numpy.f2py.crackfortran" in sys.modules)
import scipy.sparse, scipy.spatial.transform
from scipy.interpolate import LinearNDInterpolator
print(scipy.sparse.eye(3).sum(), scipy.spatial.transform.Rotation.identity().magnitude())
print(np.ma.masked_invalid([1.0, np.nan]).sum(), LinearNDInterpolator(corners, corners[:, 0])(0.5, 0.1, 0.1))
"""
    lines = ["[0.25]", "True False", "3.0 0.0", "1.0 0.5"]
    assert run(TRIANGULATION + code, tmp_path) == lines


def test_that_whoever_calls_a_triangulation_has_scipy_whole(tmp_path: Path) -> None:
    code = """
linear_interpolator(corners, corners[:, :1])
from scipy.sparse._csr import csr_matrix  # as unpickling a matrix does
import scipy.sparse
print(csr_matrix is scipy.sparse.csr_matrix)
"""
    assert run(TRIANGULATION + code, tmp_path) == ["True"]
