"""Splitting batch scripts: which lines sbatch reads as directives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.errors import UsageError
from pollux_slurm.slurm.sbatch.batch_script import directive_words, parse_script


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # each measured on sbatch 22.05.8, by looking at what it hands to getopt_long
        (r" -J a\ b", ["-J", "a", "b"]),
        (r" -J a\bc", ["-J", "abc"]),
        (r' -J "a\bc\\d\"e"', ["-J", r"abc\d" + '"e']),
        (r" -J 'a\bc'", ["-J", "abc"]),
        (r" -J 'a\'b'", ["-J", "a'b"]),
        (r' -J a"b c"d', ["-J", "ab cd"]),
        (r' -J "a"#b', ["-J", "a"]),
        (r' -J "a#b" x#y', ["-J", "a#b", "x"]),
        ("\t-n\t3", ["-n", "3"]),
        ("-n 3", ["-n", "3"]),
        ("X --mem=1", ["X", "--mem=1"]),
        (" --job-name=a$b`c", ["--job-name=a$b`c"]),
        (" --output=é\u00a0x -n 3", ["--output=é\u00a0x", "-n", "3"]),
        ("", []),
        (" # only a remark", []),
    ],
)
def test_that_a_directive_is_split_as_sbatch_splits_it(line: str, words: list[str]) -> None:
    assert directive_words(line) == words


def test_that_directives_count_up_to_the_first_command() -> None:
    script = parse_script(
        "#!/bin/bash\n# remark\n\n#SBATCH -n 3\n #SBATCH -n 4\n##SBATCH -n 5\n   # indented\n"
        "#SBATCH -n 6 # why\n   \necho\n#SBATCH -n 7\n",
        source="s.sh",
    )
    assert script.directives == ("-n", "3", "-n", "6")
    assert script.body == "echo\n#SBATCH -n 7\n"


def test_that_a_script_of_directives_alone_has_no_body() -> None:
    script = parse_script("#!/bin/sh\n#SBATCH -n 3", source="s.sh")
    assert (script.interpreter, script.head, script.body) == ("#!/bin/sh\n", "#SBATCH -n 3", "")
    assert parse_script("#!/bin/sh", source="s.sh").head == ""


@given(rest=st.text(alphabet=st.characters(exclude_characters="\0\r"), max_size=200))
def test_that_the_parts_give_back_the_whole_script(rest: str) -> None:
    script = parse_script("#!/bin/sh\n" + rest, source="s.sh")
    assert script.interpreter + script.head + script.body == "#!/bin/sh\n" + rest


@pytest.mark.parametrize("mark", ["hetjob", "packjob"])
def test_that_a_heterogeneous_job_is_refused_with_its_line(mark: str) -> None:
    with pytest.raises(UsageError, match=r"s\.sh, line 3: .*heterogeneous"):
        parse_script(f"#!/bin/sh\n#SBATCH -n 1\n#SBATCH {mark}\n#SBATCH -n 2\n", source="s.sh")


@pytest.mark.parametrize(
    ("first_line", "accepted"),
    [
        ("#!/bin/bash", True),
        ("#!/bin/bash -l", True),
        ("#! /usr/bin/env bash", True),
        ("#!/usr/bin/env -S bash -e", True),
        ("#!/usr/bin/env -S A=1 zsh", True),
        ("#!/usr/local/bin/dash", True),
        ("#!/usr/bin/python3", False),
        ("#!/usr/bin/env python3", False),
        ("#!/bin/tcsh", False),
        ("#!", False),
        ("#!/usr/bin/env", False),
    ],
)
def test_that_only_scripts_of_a_posix_shell_are_accepted(first_line: str, accepted: bool) -> None:
    if accepted:
        assert parse_script(f"{first_line}\ntrue\n", source="s.sh").interpreter == f"{first_line}\n"
    else:
        with pytest.raises(UsageError, match=r"s\.sh.*(not by a POSIX shell|names no interpreter)"):
            parse_script(f"{first_line}\nimport os\n", source="s.sh")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not look like a batch script"),
        ("echo\n", "does not look like a batch script"),
        (" #!/bin/sh\n", "does not look like a batch script"),
        ("#!/bin/sh\n\0", "does not look like a batch script"),
        ("\x7fELF", "does not look like a batch script"),
        ("#!/bin/sh\r\ntrue\r\n", "DOS line ends"),
    ],
)
def test_that_what_is_no_script_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_script(text, source="s.sh")


def test_that_job_names_in_pbs_and_bsub_lines_are_noticed() -> None:
    assert parse_script("#!/bin/sh\n#PBS -N name\n", source="s.sh").names_job
    assert parse_script("#!/bin/sh\n#BSUB -n 2 -J name\n", source="s.sh").names_job
    assert not parse_script("#!/bin/sh\n#PBS -l nodes=1\n", source="s.sh").names_job
