from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pollux_slurm.errors import ConfigError
from pollux_slurm.rendering import render

HOSTILE = "a 'b' \"c\" $(touch /tmp/pwned) `id` \\ ; & | \n * ü"


def template(folder: Path, text: str, name: str = "t.j2") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_that_a_quoted_value_reaches_a_shell_unchanged(tmp_path: Path) -> None:
    script = render("t.j2", override_dir=template(tmp_path, "printf %s {{ value | shquote }}"), value=HOSTILE)
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == HOSTILE


def test_that_an_undefined_name_is_an_error_that_names_the_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.j2.*'missing' is undefined"):
        render("t.j2", override_dir=template(tmp_path, "{{ missing }}"))


def test_that_a_malformed_template_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.j2, line 2"):
        render("t.j2", override_dir=template(tmp_path, "fine\n{% if %}\n"))


def test_that_a_missing_template_is_an_error_with_the_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"nowhere.j2: not found in {tmp_path} and "):
        render("nowhere.j2", override_dir=tmp_path)


def test_that_a_packaged_template_is_used_unless_it_is_overridden(tmp_path: Path) -> None:
    assert "CgroupPlugin=disabled" in render("cgroup.conf.j2", override_dir=tmp_path)
    template(tmp_path, "mine\n", "cgroup.conf.j2")
    assert render("cgroup.conf.j2", override_dir=tmp_path) == "mine\n"


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ value.format.__globals__ }}",
        "{{ '{0.__class__.__init__}'.format(value) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ value + 1 }}",
    ],
)
def test_that_a_template_reaches_no_python_and_its_faults_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"template t\.j2"):
        render("t.j2", override_dir=template(tmp_path, text), value="v")


def test_that_a_template_may_compute_with_its_values(tmp_path: Path) -> None:
    text = (
        "{% set l = [] %}{% for i in range(3) %}{% set _ = l.append(i * n) %}{% endfor %}{{ l | join(':') }}"
    )
    assert render("t.j2", override_dir=template(tmp_path, text), n=2) == "0:2:4"


def test_that_a_nul_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NUL"):
        render("t.j2", override_dir=template(tmp_path, "{{ value | shquote }}"), value="a\0b")


def test_that_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"t\.j2"):
        render("t.j2", override_dir=tmp_path)
