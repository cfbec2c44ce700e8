"""Which words are options and which is the script, as sbatch (getopt_long) parses them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.errors import UsageError
from pollux_slurm.slurm.sbatch.options import (
    SBATCH_OPTIONS,
    SbatchOption,
    Takes,
    parse_directives,
    parse_words,
    unknown_option,
)


def options_of(line: str) -> list[tuple[str | None, str | None]]:
    return [(option.name, option.value) for option in parse_words(line.split()).options]


def rest_of(line: str) -> list[str]:
    return list(parse_words(line.split()).rest)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("-x n0 s.sh", [("exclude", "n0")]),
        ("-xn0 s.sh", [("exclude", "n0")]),
        ("-N2 s.sh", [("nodes", "2")]),
        ("--nodes 2 s.sh", [("nodes", "2")]),
        ("--nodes=2 s.sh", [("nodes", "2")]),
        ("--nodes= s.sh", [("nodes", "")]),
        ("--exclude -v s.sh", [("exclude", "-v")]),
        ("-x -- s.sh", [("exclude", "--")]),
        ("-H s.sh", [("hold", None)]),
        ("-vv s.sh", [("verbose", None), ("verbose", None)]),
        ("-HvN2 s.sh", [("hold", None), ("verbose", None), ("nodes", "2")]),
        ("-HvN 2 s.sh", [("hold", None), ("verbose", None), ("nodes", "2")]),
        ("-G 2 -c4 s.sh", [("gpus", "2"), ("cpus-per-task", "4")]),
        # optional values only in the same word
        ("--nice s.sh", [("nice", None)]),
        ("--nice=5 s.sh", [("nice", "5")]),
        ("-k s.sh", [("no-kill", None)]),
        ("-koff s.sh", [("no-kill", "off")]),
        ("--exclusive s.sh", [("exclusive", None)]),
        ("--exclusive=user s.sh", [("exclusive", "user")]),
        ("--requeue s.sh", [("requeue", None)]),
        # abbreviations that fit one name
        ("--job a s.sh", [("job-name", "a")]),
        ("--gpus-per-n=2 s.sh", [("gpus-per-node", "2")]),
        ("--gpus 2 s.sh", [("gpus", "2")]),
        ("--mem 2 s.sh", [("mem", "2")]),
        ("--comm a s.sh", [("comment", "a")]),
        ("--wr true", [("wrap", "true")]),
        ("--tasks-per-node 2 s.sh", [("ntasks-per-node", "2")]),
        # ambiguous: all of gpus-per-* take a value, though which is meant is for sbatch to refuse
        ("--gpus-per 2 s.sh", [(None, "2")]),
        # unknown, for instance a site's own: a value only behind an equals sign
        ("--site-thing s.sh", [(None, None)]),
        ("--site-thing=5 s.sh", [(None, "5")]),
        ("-Z s.sh", [(None, None)]),
        # those of pyxis, whose values may be words of their own
        ("--container-image x.sqsh s.sh", [("container-image", "x.sqsh")]),
        (
            "--container-mounts /a:/b --container-writable s.sh",
            [("container-mounts", "/a:/b"), ("container-writable", None)],
        ),
        ("--no-container-mount-home s.sh", [("no-container-mount-home", None)]),
        ("--container-im x.sqsh s.sh", [("container-image", "x.sqsh")]),
        ("s.sh -N 2", []),
        ("-- s.sh", []),
        ("", []),
    ],
)
def test_that_options_are_read_as_getopt_long_reads_them(line: str, options: list[tuple[str, str]]) -> None:
    assert options_of(line) == options
    if "s.sh" in line:
        assert rest_of(line)[0] == "s.sh"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--site-thing 5 s.sh", "--site-thing"),
        ("-N 2 --site-thing s.sh", "--site-thing"),
        ("--site-thing=5 s.sh", None),
        ("--site-thing -N 2 s.sh", None),
        ("--site-thing -- s.sh", None),
        ("--site-thing", None),
        ("--gpus-per 2 s.sh", None),  # sbatch's own, abbreviated
        ("--no s.sh", None),
        ("-Z s.sh", None),
        ("s.sh --site-thing 5", None),
    ],
)
def test_that_an_unknown_option_before_another_word_is_found(line: str, word: str | None) -> None:
    assert unknown_option(parse_words(line.split())) == word


def test_that_in_directives_a_word_after_an_unknown_option_is_its_value() -> None:
    found = parse_directives(["--site-thing", "5", "--gpus=2", "--other", "x", "-N", "3"])
    assert [(option.name, option.value) for option in found if option.name] == [("gpus", "2"), ("nodes", "3")]
    # As sbatch, it reads nothing after a word that cannot be a value.
    assert [option.name for option in parse_directives(["--gpus=2", "odd", "--nodes=3"])] == ["gpus"]


def test_that_everything_after_the_script_is_the_scripts() -> None:
    assert rest_of("-N 2 s.sh -N 3 --gpus=1 -- x") == ["s.sh", "-N", "3", "--gpus=1", "--", "x"]
    assert rest_of("-- -N") == ["-N"]
    assert rest_of("- -N") == ["-", "-N"]


@pytest.mark.parametrize("line", ["-N", "--nodes", "-vN", "--gpus-per"])
def test_that_an_option_without_its_value_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        parse_words(line.split())


def test_that_added_options_are_known_by_their_whole_name_only() -> None:
    added = [SbatchOption("min-gpus"), SbatchOption("dry-run", Takes.NOTHING)]
    parsed = parse_words(["--min-gpus", "2", "--dry-run", "--min", "3", "s.sh"], exact=added)
    assert [option.name for option in parsed.options] == ["min-gpus", "dry-run", "mincpus"]


words = st.lists(
    st.sampled_from(["-N", "2", "-N2", "--nodes=2", "-vH", "-HN", "--hold", "--odd", "--", "s.sh", "-k", ""])
    | st.text(max_size=4)
)


@given(words=words)
def test_that_no_word_is_lost_or_changed(words: list[str]) -> None:
    try:
        parsed = parse_words(words)
    except UsageError:
        return
    joined = [word for option in parsed.options for word in option.words]
    assert [*joined, *parsed.rest] == words or [*joined, "--", *parsed.rest] == words


def test_that_the_table_agrees_with_sbatch_22_05() -> None:
    # sbatch 22.05.8 passes these to getopt_long, except --requeue, which takes a value from 25.11 on.
    letters = "A:a:b:D:M:C:S:c:d:m:e:x:B:G:hHi:J:L:k::F:w:N:n:o:Osp:q:Qt:vVW"
    suffix = {Takes.VALUE: ":", Takes.OPTIONAL: "::", Takes.NOTHING: ""}
    own = {option.letter: suffix[option.takes] for option in SBATCH_OPTIONS if option.letter}
    given = dict(re.findall("([A-Za-z])(:*)", letters))
    assert own == given
    flags = (
        "consolidate-segments contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable "
        "quiet reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version wait"
    )
    optional = "exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports"
    assert [o.name for o in SBATCH_OPTIONS if o.takes is Takes.NOTHING] == flags.split()
    assert [o.name for o in SBATCH_OPTIONS if o.takes is Takes.OPTIONAL] == optional.split()
    assert len({o.name for o in SBATCH_OPTIONS}) == len(SBATCH_OPTIONS)
