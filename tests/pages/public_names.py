"""What the pages in docs/api show: each public name with its docstring, its parameters and its examples.

As a program it runs the examples of one page, each after the last block of Python above it:

    python -m tests.pages.public_names docs/api/torch.md
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pages.blocks import ROOT, blocks_of

PAGES = tuple(sorted((ROOT / "docs" / "api").glob("*.md")))

_SHOWN = re.compile(r"^::: (?P<path>\S+)(?P<options>(?:\n    .*)*)", re.M)
_MEMBERS = re.compile(r"members:(?: \[(?P<one_line>[^\]]*)\]|(?P<lines>(?:\n +- \w+)+))")
_ARGUMENT = re.compile(r"^ {4}\*{0,2}(\w+): \S", re.M)
_BULLET = re.compile(r"^- (?:.+\n)+?(?=\n|- |\Z)", re.M)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicName:
    """A function, class, method or property that a page shows.

    `owner` is the class of a method or property, `setup` the block of the page that its examples begin with.
    """

    name: str
    value: Any
    setup: str
    owner: PublicName | None = None

    @property
    def docstring(self) -> str:
        return inspect.getdoc(self.value) or ""

    @property
    def is_property(self) -> bool:
        return isinstance(self.value, property)

    @property
    def parameters(self) -> list[str]:
        """The names of what it is called with; a class is called to make an object."""
        if inspect.isclass(self.value):
            return list(inspect.signature(self.value.__init__).parameters)[1:] if _is_made(self.value) else []
        if self.is_property:
            return []
        names = list(inspect.signature(self.value).parameters)
        is_bound = self.owner is not None and not inspect.ismethod(self.value)
        return names[1:] if is_bound else names

    @property
    def described(self) -> set[str]:
        """The parameters with a line: `name: ...` under "Args:", or named in an item of a list."""
        items = _BULLET.findall(self.docstring + "\n")
        section = re.search(r"^Args:\n((?:^ .*\n|\n)+)", self.docstring + "\n", re.M)
        return set(_ARGUMENT.findall(section[1] if section else "")) | {
            name for item in items for name in re.findall(r"`(\w+)(?:\(\))?`", item)
        }

    @property
    def examples(self) -> list[doctest.Example]:
        return doctest.DocTestParser().get_examples(self.docstring, self.name)


def public_names(page: Path) -> Iterator[PublicName]:
    """Yield what a page shows, each class before its methods."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    for found in _SHOWN.finditer(text):
        line = text[: found.start()].count("\n")
        setup = next((block.text for block in reversed(blocks) if block.line <= line), "")
        value = _resolve(found["path"])
        if inspect.ismodule(value):
            for name in _names_of_module(value):
                yield from _with_members(f"{value.__name__}.{name}", getattr(value, name), setup, None)
        else:
            members = _MEMBERS.search(found["options"])
            names = (
                None if members is None else re.findall(r"\w+", members["one_line"] or members["lines"] or "")
            )
            yield from _with_members(found["path"], value, setup, names)


def _with_members(path: str, value: Any, setup: str, members: list[str] | None) -> Iterator[PublicName]:
    whole = PublicName(name=path, value=value, setup=setup)
    yield whole
    if not inspect.isclass(value):
        return
    if members is None:
        # What has no docstring of its own is not shown.
        members = [
            name
            for name, member in vars(value).items()
            if not name.startswith("_")
            and (callable(member) or isinstance(member, _DESCRIPTORS))
            and member.__doc__
        ]
    for name in members:
        yield PublicName(name=f"{path}.{name}", value=_member(value, name), setup=setup, owner=whole)


_DESCRIPTORS = (property, classmethod, staticmethod)


def _member(of: type, name: str) -> Any:
    member = inspect.getattr_static(of, name)
    return getattr(of, name) if isinstance(member, (classmethod, staticmethod)) else member


def _names_of_module(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def _resolve(path: str) -> Any:
    words = path.split(".")
    for length in range(len(words), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            value = getattr(value, word)
        return value
    raise ImportError(path)


def _is_made(value: type) -> bool:
    """Return whether the class, or one that it inherits from here, says itself how it is made."""
    return any("__init__" in vars(one) for one in value.__mro__ if one.__module__.startswith("pollux_slurm"))


# ------------------------------------------------------------------------------------------ as a program


def run_examples(page: Path, say: Callable[[str], object]) -> tuple[int, int]:
    """Run a page's examples, and say what fails; return the numbers of failures and of examples."""
    runner = doctest.DocTestRunner(optionflags=_FLAGS, verbose=False)
    for one in public_names(page):
        if not one.examples:
            continue
        # A function that an example defines is that of a notebook.
        names: dict[str, Any] = {"__name__": "__main__"}
        with _in_a_program_of_its_own():
            # It is what the setups begin with.
            if not one.name.endswith(".init_process_group"):
                exec(one.setup, names)
            runner.run(doctest.DocTest(one.examples, names, one.name, None, None, None), out=say)
    return runner.failures, runner.tries


@contextmanager
def _in_a_program_of_its_own() -> Iterator[None]:
    """Give the examples an empty folder, and end the session that they began."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        yield
        current = sys.modules.get("pollux_slurm.torch.session.current_session")
        if current is not None and current.has_session():
            session = current.current_session()
            current.set_session(None)
            session.close()
        os.chdir(before)


if __name__ == "__main__":
    failed, tried = run_examples(Path(sys.argv[1]), sys.stdout.write)
    print(f"{tried} examples, {failed} failed")
    sys.exit(failed > 0)
