"""Nothing is written into a job's folders but by the functions of `system/private_files.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import FILES, PACKAGE, tree_of

PRIVATE_FILES = "system/private_files.py"

A_NEW_NAME = "a name that did not exist (O_EXCL), most of them random"
OF_A_PERSON = "a file that a person names, as behind a shell's >"
REHEARSAL = "in the folder of a rehearsal, which mkdtemp makes for its user alone"
SANDBOX = "in the folder of a sandbox, which has no job of another user"
ALLOWED = {
    ("agent/checkpoints/disk_space.py", "has_room"): A_NEW_NAME,
    ("launch/node/rendezvous.py", "rendezvous_file"): A_NEW_NAME,
    ("agent/rehearsal_protocol.py", "write"): REHEARSAL,
    ("agent/rehearsal_protocol.py", "_open"): REHEARSAL,
    ("agent/membership/folder.py", "commit"): "a second name for an own file, in its folder",
    ("launch/submit/submission.py", "_script"): "a file without a name",
    ("cli/app.py", "_discard_output"): "/dev/null",
    ("cli/jobs/rehearse.py", "rehearse"): A_NEW_NAME,
    ("cli/shared/problem_files.py", "write_problem"): OF_A_PERSON,
    ("cli/site/doctor.py", "_marked"): A_NEW_NAME,
    ("cli/site/first_settings.py", "write_settings"): A_NEW_NAME,
    ("cli/site/report_output.py", "_write_pictures"): OF_A_PERSON,
    ("daemon/doctor/node_answers.py", "_complaint"): A_NEW_NAME,
    ("now/failure_line.py", "_end_of"): "only reads",
    ("lightning/loggers.py", "_resume_csv"): "a log of Lightning's, where its user has put it",
    ("system/process_control.py", "spawn"): "a process's output, in the folder of a function or a sandbox",
    ("rehearsal/runs/script_run.py", "_start"): REHEARSAL,
    ("sandbox/cluster.py", "_locked"): SANDBOX,
    ("sandbox/cluster.py", "_saved"): SANDBOX,
    ("sandbox/files.py", "write_files"): SANDBOX,
    ("simulator/policies/adaptive/sia.py", "_suppressed_stdout"): "/dev/null",
    ("simulator/results/files.py", "write_text"): OF_A_PERSON,
    ("slurm/pyslurm/process.py", "_started"): "a file without a name",
    ("store/access/opening.py", "_find_file"): A_NEW_NAME,
    ("torch/rehearsal/planned_lack_of_memory.py", "fail"): REHEARSAL,
    ("torch/rehearsal/repeatable_workers.py", "_watched"): REHEARSAL,
    ("torch/rehearsal/repetition.py", "note_checkpoint"): REHEARSAL,
}

WRITING_METHODS = frozenset({"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"})
WRITING_FUNCTIONS = frozenset(
    {"mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkfifo", "mknod"}
)
COPYING = frozenset({"copy", "copy2", "copyfile", "copytree", "move"})
WRITING_FLAGS = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT"})


def is_writer(call: ast.Call) -> bool:
    """Whether a call opens a file by its name to write it, or makes one."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    module = (
        function.value.id
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
        else ""
    )
    if name in WRITING_FUNCTIONS or (isinstance(function, ast.Attribute) and name in WRITING_METHODS):
        return True
    if name == "FileHandler" or (module == "os" and name in {"link", "symlink"}):
        return True
    if name == "posix_spawn" or (module == "shutil" and name in COPYING):
        return True
    if name != "open":
        return False
    if module == "os":
        names = {
            node.attr for one in call.args[1:2] for node in ast.walk(one) if isinstance(node, ast.Attribute)
        }
        return bool(names & WRITING_FLAGS) or not names & {"O_RDONLY"}
    place = 1 if isinstance(function, ast.Name) else 0
    modes = [*call.args[place : place + 1], *(one.value for one in call.keywords if one.arg == "mode")]
    return any(not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+") for mode in modes)


def writers(file: Path) -> Iterator[tuple[str, str, int]]:
    """Yield file, innermost function and line of each call that writes."""
    stack: list[tuple[ast.AST, str]] = [(tree_of(file), "")]
    while stack:
        node, function = stack.pop()
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and is_writer(node):
            yield file.relative_to(PACKAGE).as_posix(), function, node.lineno
        stack.extend((child, function) for child in ast.iter_child_nodes(node))


def test_that_only_one_file_writes_but_for_a_short_list() -> None:
    found = [one for file in FILES if file != PACKAGE / PRIVATE_FILES for one in writers(file)]
    wrong = [
        f"{file}:{line}: {function}" for file, function, line in found if (file, function) not in ALLOWED
    ]
    assert not wrong, "use system/private_files.py, or give a reason in ALLOWED:\n" + "\n".join(wrong)
    stale = ALLOWED.keys() - {(file, function) for file, function, _ in found}
    assert not stale, f"these write nothing: {sorted(stale)}"


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("open(name, 'w')", True),
        ("open(name, mode='ab')", True),
        ("path.open('x')", True),
        ("path.open(how)", True),
        ("os.open(name, os.O_RDWR)", True),
        ("os.open(name, flags)", True),
        ("path.write_text(text)", True),
        ("path.touch()", True),
        ("os.link(one, two)", True),
        ("shutil.copyfile(one, two)", True),
        ("logging.FileHandler(name)", True),
        ("tempfile.NamedTemporaryFile()", True),
        ("open(name)", False),
        ("open(name, 'rb')", False),
        ("path.open('rb')", False),
        ("path.open(encoding='utf-8', newline='')", False),
        ("os.open(name, os.O_RDONLY | os.O_CLOEXEC)", False),
        ("file.write(text)", False),
        ("copy.copy(value)", False),
        ("pool.open()", False),
    ],
)
def test_that_writers_are_told_from_readers(line: str, writes: bool) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert is_writer(call) == writes
