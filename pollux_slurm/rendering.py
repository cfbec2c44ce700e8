"""Render the files of `templates/`; undefined names are errors.

A site may have templates of its own. They run in Jinja's sandbox, since they are texts and no programs: they
see the values that they are given, and nothing that Python reaches from these.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
)
from jinja2.sandbox import SandboxedEnvironment

from pollux_slurm.errors import ConfigError
from pollux_slurm.resources import resource_dir

# What an expression of a template raises: 1 / 0, a range beyond the sandbox's, a text plus a number.
_FAULTS = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


def render(template: str, /, *, override_dir: Path | str | None = None, **values: Any) -> str:
    """Return `template` (a file name such as `slurm.conf.j2`) filled with `values`.

    A file of that name in `override_dir` replaces the packaged one. `{{ value | shquote }}` quotes a
    value for a POSIX shell. Raises `ConfigError` for a template that is missing or malformed, or
    that uses a name without a value.
    """
    folders = ([Path(override_dir)] if override_dir is not None else []) + [resource_dir("templates")]
    environment = SandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        undefined=StrictUndefined,
        autoescape=False,  # what is rendered are shell scripts and configuration files
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shquote"] = _shquote
    try:
        return environment.get_template(template).render(**values)
    except TemplateNotFound as error:
        places = " and ".join(str(folder) for folder in folders)
        raise ConfigError(f"template {error.name}: not found in {places}") from None
    except (TemplateError, OSError, *_FAULTS) as error:
        line = getattr(error, "lineno", None)
        where = f"{template}, line {line}" if line else template
        raise ConfigError(f"template {where}: {error}") from None


def _shquote(value: object) -> str:
    text = str(value)
    if "\0" in text:
        raise ConfigError("a value with a NUL character cannot be passed to a shell")
    return shlex.quote(text)
