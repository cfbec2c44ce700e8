"""The plan of `pollux sbatch`: golden files, hostile names in a real shell, and refusals."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.environment.token import token_sha256
from pollux_slurm.config import CheckpointsConfig, Config, StoreConfig, TemplatesConfig
from pollux_slurm.errors import ConfigError, UsageError
from pollux_slurm.launch.submit.given_words import POLLUX_OPTIONS, refuse_misspelled_options
from pollux_slurm.launch.submit.room_for_wings import Room
from pollux_slurm.launch.submit.submission_plan import SubmissionPlan, plan_submission
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, user_part
from pollux_slurm.slurm.sbatch.options import SBATCH_OPTIONS, parse_words

GOLDEN = Path(__file__).parents[1] / "golden"
TOKEN = "1000-" + "0" * 64
SIMPLE = "#!/bin/bash\npollux run -- python train.py\n"


def plan(
    words: list[str],
    *,
    cwd: Path = Path("/home/ada/work"),
    environ: Mapping[str, str] | None = None,
    config: Config | None = None,
    stdin: bytes = SIMPLE.encode(),
    **asked: Any,
) -> SubmissionPlan:
    return plan_submission(
        parse_words(words, exact=POLLUX_OPTIONS),
        environ=environ or {},
        cwd=cwd,
        config=config or Config(),
        token=TOKEN,
        identifier="1a2b3c4d",
        read_stdin=lambda: stdin,
        **asked,
    )


# With one, nothing is said of a store that is missing.
STORED = Config(store=StoreConfig(url="sqlite:////shared/pollux.db"))


def added(script: str) -> list[str]:
    """Return the directives that were added."""
    ours = script.partition("# --- added")[2].partition("# --- the user's")[0]
    return [line.removeprefix("#SBATCH ") for line in ours.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(
    ("words", "known", "waits"),
    [
        ([], 4, True),
        (["--gpus=4"], 4, False),
        (["--max-gpus=1"], 4, False),
        ([], 0, False),
        (["--in-place"], 4, False),
        (["--begin=now+1hour"], 4, False),
        (["--kind", ""], 4, False),
    ],
    ids=["larger", "as large", "no larger one allowed", "unknown", "in place", "a begin time", "no kind"],
)
def test_that_a_job_whose_kind_used_more_gpus_waits_a_moment_for_the_daemon(
    words: list[str], known: int, waits: bool
) -> None:
    found = plan(
        ["--max-gpus=8", *words],
        config=STORED,
        may_start_larger=lambda kind, num_gpus: bool(kind) and known > num_gpus,
    )
    assert ("--begin=now+20" in found.options) is waits
    assert any("earlier jobs of its kind used more than 1 GPU:" in one for one in found.warnings) is waits


def test_that_a_job_in_place_moves_by_requeue_where_slurm_has_no_room_for_wings() -> None:
    def planned(because: str | None) -> SubmissionPlan:
        return plan(["--in-place"], config=STORED, room_for_wings=lambda _request: Room(none_because=because))

    assert (planned(None).terms.in_place, planned(None).warnings) == (True, ())
    found = planned("MaxJobs=2 of ada leaves 2")
    assert (found.terms.in_place, found.wings) == (False, None)
    assert found.warnings == ("the job moves by requeue, not in place: MaxJobs=2 of ada leaves 2",)
    assert found.script == plan([], config=STORED).script
    # Where it is the site's default, no other job asks.
    assert plan(["--no-in-place"], config=STORED).warnings == ()


@pytest.mark.parametrize("option", ["--bb=capacity=1G", "--bbf=buffer"])
def test_that_a_job_with_a_burst_buffer_moves_by_requeue(option: str) -> None:
    found = plan(["--in-place", option], config=STORED)
    assert (found.terms.in_place, found.wings) == (False, None)
    assert option in found.options
    assert found.warnings == (
        f"the job moves by requeue, not in place: {option.partition('=')[0]}: processes that join could not "
        "reach the job's burst buffer",
    )
    assert plan([option], config=STORED).warnings == ()


def test_that_a_body_without_pollux_run_is_warned_of() -> None:
    (warning,) = (one for one in plan([], stdin=b"#!/bin/sh\npython train.py\n").warnings if "body" in one)
    assert "neither moved nor measured; write: pollux run -- python train.py" in warning
    for body in ("srun pollux run -- python train.py", "python -m pollux_slurm run -- python train.py"):
        assert not [one for one in plan([], stdin=f"#!/bin/sh\n{body}\n".encode()).warnings if "body" in one]


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [("--mem=0", True), ("--mem=0G", True), ("--mem=0 --mem-per-gpu=1G", False), ("--mem=10G", False)],
)
def test_that_all_memory_of_a_node_is_warned_of(words: str, is_warned: bool) -> None:
    warnings = plan(words.split(), config=STORED).warnings
    assert [one.startswith("--mem=0 takes all memory of a node") for one in warnings] == [True] * is_warned


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        ("-o logs/%j.out -e logs/%j.err", ["logs"]),
        ("-o here/%j.out -e there/%j.err", ["there"]),
        ("-D here -o logs/%j.out", ["here/logs"]),
        ("-o %x/%j.out -e %j.err", []),
        ("-o /dev/null", []),
        ("--checkpoint-dir=kept -o kept/%j.out", []),  # the submission makes it
        ("", []),
    ],
)
def test_that_a_folder_of_logs_that_is_missing_is_warned_of(
    tmp_path: Path, words: str, folders: list[str]
) -> None:
    (tmp_path / "here").mkdir()
    found = plan(words.split(), cwd=tmp_path, config=STORED).warnings
    assert [one.rpartition(" ")[2] for one in found] == [f"{tmp_path}/{folder}" for folder in folders]
    assert all("Slurm ends the job at its start" in one for one in found)


def test_that_a_signal_that_has_no_effect_in_place_is_warned_of() -> None:
    script = b"#!/bin/sh\n#SBATCH --signal=B:USR1@60\npollux run -- train\n"
    found = plan(["--in-place"], stdin=script, config=STORED)
    assert "USR1" not in found.script
    assert found.warnings == (
        "#SBATCH --signal has no effect in place: all processes get SIGTERM before the time limit, to write "
        "a checkpoint",
    )
    assert plan([], stdin=script.replace(b"B:", b""), config=STORED).warnings == ()


# ------------------------------------------------------------------------------------------------ golden


def test_that_a_plain_script_is_rendered_as_in_the_golden_file(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(SIMPLE)
    made = plan([str(script)])
    assert made.script == (GOLDEN / "plain.sbatch").read_text()


def test_that_a_script_with_its_own_options_is_rendered_as_in_the_golden_file(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(
        "#!/bin/bash -l\n"
        "# What my group runs each night.\n"
        "#SBATCH --job-name=night --time=30 --gpus=a100:4 # two more if we are lucky\n"
        '#SBATCH --comment="ask Ada first"\n'
        "\n"
        "module load cuda  # {{ not a template }} {% nor this %}\n"
        'pollux run -- python train.py "$@"\n'
        "cat <<EOF\n$HOME\nEOF"
    )
    made = plan(
        [
            "--min-gpus",
            "2",
            "--max-gpus",
            "8",
            "--mem-per-gpu=20G",
            "--allow-unconfirmed",
            "--kind=night",
            str(script),
            "--lr",
            "0.1",
        ],
        environ={"POLLUX_CONFIG": "pollux.toml"},
        config=Config(store=StoreConfig(url="sqlite:///shared/pollux.db")),
    )
    assert made.script == (GOLDEN / "wishes.sbatch").read_text()
    assert made.options == (
        "--mem-per-gpu=20G",
        f"--comment=ask Ada first pollux/1:sha256={token_sha256(TOKEN)},uid=1000,min=2,max=8,unconfirmed=1,"
        "kind=night",
    )
    assert made.arguments == ("--lr", "0.1")


def test_that_the_kind_goes_into_the_comment_and_seeds_do_not_change_it() -> None:
    kinds = {
        plan([f"--wrap=pollux run -- python train.py {words}"]).terms.kind
        for words in ("--seed 1", "--seed 2", "--seed=3")
    }
    (kind,) = kinds
    assert f",kind={kind}" in " ".join(plan(["--wrap=pollux run -- python train.py --seed 1"]).options)
    assert "kind=" not in " ".join(plan(["--kind="]).options)
    with pytest.raises(UsageError, match="--kind 'a b'"):
        plan(["--kind=a b"])


def test_that_the_folder_that_a_job_begins_in_belongs_to_its_kind() -> None:
    def kind_in(cwd: str, *words: str, directive: str = "") -> str | None:
        script = SIMPLE.replace("\n", f"\n{directive}\n", 1).encode()
        return plan([*words], cwd=Path(cwd), stdin=script).terms.kind

    here = kind_in("/home/ada/digits")
    assert kind_in("/home/ada/charlm") != here
    assert kind_in("/home", "--chdir=/home/ada/digits") == here
    assert kind_in("/home/ada/charlm", "-D", "../digits") == here
    assert kind_in("/home/ada", directive="#SBATCH --chdir=digits") == here
    assert kind_in("/home/ada", "--kind=gpt2") == kind_in("/home/ben", "--kind=gpt2") == "gpt2"


@pytest.mark.parametrize(("text", "field"), [("2h", "7200"), ("always", "always"), ("0", "0")])
def test_that_a_shortest_run_goes_into_the_comment(text: str, field: str) -> None:
    assert f",minrun={field}" in " ".join(plan([f"--min-run={text}"]).options)
    assert "minrun" not in " ".join(plan([]).options)


def test_that_a_moment_goes_into_the_comment() -> None:
    made = plan(["--finish-by=2126-12-01T09:00Z"])
    assert f",finishby={int(datetime(2126, 12, 1, 9, tzinfo=timezone.utc).timestamp())}" in " ".join(
        made.options
    )
    assert "finishby" not in " ".join(plan([]).options)


def test_that_a_total_time_goes_into_the_comment_with_the_time_of_a_run() -> None:
    made = plan(["--time=4:00:00", "--total-time", "2-00:00", "--kind="])
    assert (made.terms.slice_s, made.terms.total_s) == (4 * 3600, 48 * 3600)
    assert made.options[0] == "--time=4:00:00"
    assert made.options[1].endswith(",min=1,slice=14400,total=172800")
    assert not any(option.startswith("--total") for option in made.options)
    of_script = plan(["--total-time=90"], stdin=b"#!/bin/sh\n#SBATCH --time=30\n")
    assert (of_script.terms.slice_s, of_script.terms.total_s) == (1800, 5400)
    for total, total_s in (("70s", 70), ("90m", 5400), ("1.5h", 5400), ("2d", 172800), ("1w", 604800)):
        assert plan(["--time=1", f"--total-time={total}"]).terms.total_s == total_s


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--total-time=2-00:00"], "--total-time needs --time"),
        (
            ["--total-time=2-00:00", "--time=UNLIMITED"],
            "--total-time needs --time.*UNLIMITED is not a limit",
        ),
        (["--total-time=2d", "--time=70s"], "--total-time needs --time.*--time 70s is not a limit"),
        (
            ["--total-time=soon", "--time=60"],
            "takes a number with s, m, h, d or w, .*minutes:seconds.*'soon'",
        ),
        (["--total-time=0s", "--time=60"], "takes a number with s, m, h, d or w"),
        (["--total-time=99999999h", "--time=60"], "takes a number with s, m, h, d or w"),
        (["--total-time=90s", "--time=2"], "--total-time 90s is not above --time 2"),
        (["--total-time=60", "--time=60"], "--total-time 60 is not above --time 60"),
    ],
)
def test_that_an_invalid_total_time_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(words)


# ----------------------------------------------------------------------------------- what is put into it


def test_that_a_job_without_gpus_starts_with_its_minimum_or_one() -> None:
    assert "--gpus=1" in added(plan([]).script)
    assert "--gpus=3" in added(plan(["--min-gpus=3"]).script)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [("-N2", 2), ("-N2-4 --min-gpus=3", 3), ("-w n[0-3],m1", 5), ("-N1 -w n0", 1), ("-N odd", 1)],
)
def test_that_a_job_without_gpus_has_one_on_each_of_its_nodes(words: str, gpus: int) -> None:
    """sbatch refuses fewer GPUs than nodes."""
    assert f"--gpus={gpus}" in added(plan(words.split()).script)
    in_place = plan([*words.split(), "--in-place"])
    assert in_place.wings is not None
    assert f"--gpus={gpus}" in in_place.wings.options


@pytest.mark.parametrize(
    ("words", "cpus"),
    [
        ("-n 28", 28),
        ("-n 28 --gpus=3", 10),
        ("--ntasks-per-node=4 -N2 --gpus-per-node=4", 1),
        ("--ntasks-per-node=28 -N2", 28),
        ("-n 28 --overcommit", 1),
        ("-N4", 1),
        ("--ntasks-per-gpu=2", 1),
    ],
)
def test_that_each_task_has_a_cpu(words: str, cpus: int) -> None:
    """Slurm never starts a job of 28 tasks with one GPU and one CPU for it."""
    assert f"--cpus-per-gpu={cpus}" in added(plan(words.split()).script)
    in_place = plan([*words.split(), "--in-place"]).wings
    assert in_place is not None
    assert f"--cpus-per-gpu={cpus}" in in_place.options
    assert in_place.cpus_per_gpu == cpus


@pytest.mark.parametrize(
    "own", ["-G 2", "--gpus-per-node=2", "--gres=gpu:2", "--gpus-per-task=2", "-n4 --ntasks-per-gpu=2"]
)
def test_that_the_requested_nodes_and_gpus_are_kept(own: str) -> None:
    made = plan([*own.split(), "--min-gpus=2"])
    assert not [line for line in added(made.script) if line.startswith("--gpus")]
    assert made.options[: len(own.split())] == tuple(own.split())


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({"words": ["--requeue"]}, "--requeue"),
        ({"words": ["--open-mode", "truncate"]}, "--open-mode"),
        ({"words": ["-c", "4"]}, "--cpus-per-gpu"),
        ({"words": ["--cpus-per-gpu=4"]}, "--cpus-per-gpu"),
        ({"words": ["--signal=USR1"]}, "--signal"),
        ({"environ": {"SBATCH_GPUS": "2"}}, "--gpus"),
        ({"environ": {"SBATCH_SIGNAL": "USR1"}}, "--signal"),
        ({"stdin": b"#!/bin/sh\n#SBATCH --signal=B:USR1@60\n"}, "--signal"),
    ],
)
def test_that_options_that_the_user_gave_are_not_added_again(given: dict[str, object], absent: str) -> None:
    made = plan(**{"words": [], **given})  # type: ignore[arg-type]
    assert not [line for line in added(made.script) if line.startswith(absent)]


@pytest.mark.parametrize(
    ("option", "body", "expected"),
    [
        ("B:USR1@90", "pollux run -- train", "reaches the batch script alone"),
        ("INT@90", "pollux run -- train", "makes no training process write a checkpoint"),
        ("USR1@90", "pollux run -- train", None),
        ("R:SIGTERM@60", "pollux run -- train", None),
        ("12@60", "pollux run -- train", None),
        ("B:USR1@90", "trap 'kill -TERM $!' USR1\npollux run -- train & wait", None),
        ("B:TERM@90", "exec pollux run -- train", None),
    ],
)
def test_that_a_signal_on_which_no_checkpoint_is_written_is_named(
    option: str, body: str, expected: str | None
) -> None:
    found = plan([f"--signal={option}"], stdin=f"#!/bin/sh\n{body}\n".encode(), config=STORED).warnings
    about = [one for one in found if one.startswith("--signal")]
    assert [expected in one for one in about] == ([] if expected is None else [True])


@pytest.mark.parametrize(
    ("limit", "warning_s"),
    [("1", 10), ("5", 30), ("1:00:00", 120), ("3-0", 120), ("infinite", 120), ("", 120)],
)
def test_that_the_warning_before_the_time_limit_leaves_a_short_job_its_time(
    limit: str, warning_s: int
) -> None:
    assert f"--signal=TERM@{warning_s}" in added(plan([f"--time={limit}"]).script)


def test_that_the_comment_keeps_the_users_words_from_wherever_they_come() -> None:
    made = plan(["--comment", "one; $(two)\nthree"], stdin=b"#!/bin/sh\n#SBATCH --comment=four\n")
    (comment,) = [word for word in made.options if word.startswith("--comment")]
    assert user_part(comment.removeprefix("--comment=")) == "one; $(two)\nthree"
    assert decode_comment(comment.removeprefix("--comment=")) == made.terms
    assert "--comment" not in [word for word in made.options if word != comment]


def test_that_our_options_are_accepted_anywhere_before_the_script() -> None:
    made = plan(["-v", "--min-gpus=2", "-p", "gpu", "--dry-run", "--wrap=true", "--max-gpus", "4"])
    assert made.options[:3] == ("-v", "-p", "gpu")
    assert (made.terms.min_gpus, made.terms.max_gpus, made.is_dry_run) == (2, 4, True)


def test_that_the_job_is_named_as_sbatch_names_it(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(SIMPLE)
    assert "--job-name=train.sbatch" in plan(["train.sbatch"], cwd=tmp_path).options
    assert "--job-name=sbatch" in plan([]).options
    assert "--job-name=wrap" in plan(["--wrap=true"]).options
    assert plan(["-J", "mine"]).options[:2] == ("-J", "mine")
    assert not [o for o in plan([], environ={"SBATCH_JOB_NAME": "x"}).options if "job-name" in o]
    assert not [o for o in plan([], stdin=b"#!/bin/sh\n#PBS -N x\n").options if "job-name" in o]


def test_that_the_script_is_found_where_sbatch_finds_it(tmp_path: Path) -> None:
    for place in ("here", "there", "bin"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{place}.sbatch").write_text(f"#!/bin/sh\necho {place}\n")
    environ = {"PATH": f"/nonexistent:{tmp_path / 'bin'}"}
    here = tmp_path / "here"
    assert "echo here" in plan(["here.sbatch"], cwd=here, environ=environ).script
    assert "echo bin" in plan(["bin.sbatch"], cwd=here, environ=environ).script
    assert "echo there" in plan(["-D", str(tmp_path / "there"), "there.sbatch"], cwd=here).script
    assert "echo there" in plan(["../there/there.sbatch"], cwd=here).script


@pytest.mark.parametrize("way", ["--in-place", "--no-in-place"])
def test_that_wrap_becomes_a_script(way: str) -> None:
    made = plan([way, "--wrap", "pollux run -- python train.py"], config=STORED)
    assert made.script.endswith("\npollux run -- python train.py\n")
    assert not [word for word in made.options if "wrap" in word and "job-name" not in word]


def test_that_checkpoints_go_below_the_submission_directory_or_to_the_named_one() -> None:
    made = plan([])
    assert made.checkpoint_dir == Path("/home/ada/work/pollux-checkpoints/sbatch-1a2b3c4d")
    assert made.token_file.parent == made.script_file.parent == made.checkpoint_dir
    assert plan(["--checkpoint-dir=../ck"]).checkpoint_dir == Path("/home/ada/ck")
    assert plan(["--checkpoint-dir", "/scratch/x"]).checkpoint_dir == Path("/scratch/x")
    set_root = Config(checkpoints=CheckpointsConfig(root="/scratch/ck"))
    assert plan([], config=set_root).checkpoint_dir == Path("/scratch/ck/sbatch-1a2b3c4d")
    assert plan(["--checkpoint-dir=../ck"], config=set_root).checkpoint_dir == Path("/home/ada/ck")
    # not even when this is called from inside another adaptive job
    assert plan([], environ={"POLLUX_CHECKPOINT_DIR": "/other"}).checkpoint_dir == made.checkpoint_dir


def test_that_only_the_tokens_hash_is_in_the_arguments_and_the_script() -> None:
    made = plan(["-v"])
    assert TOKEN not in made.script
    assert not [word for word in made.options if TOKEN in word]
    assert made.terms.token_sha256 == token_sha256(TOKEN)


@pytest.mark.parametrize(
    ("url", "exported"),
    [
        ("sqlite:////srv/pollux.db", "sqlite:////srv/pollux.db"),
        ("sqlite:///pollux.db", "sqlite:////home/ada/work/pollux.db"),
        ("postgresql+psycopg://agent@db.site:5432/pollux", "postgresql+psycopg://agent@db.site:5432/pollux"),
        ("postgresql+psycopg://agent:secret@db.site/pollux", None),
        ("postgresql+psycopg://db.site/pollux?user=a&password=secret", None),
        ("postgresql+psycopg://db.site/pollux?sslpassword=secret", None),
        ("postgresql+psycopg://db.site/pollux?user=a&%70assword=secret", None),
        ("postgresql://agent:a/secret@db.site/pollux", None),
        (None, None),
    ],
)
def test_that_the_store_is_exported_but_no_password(url: str | None, exported: str | None) -> None:
    made = plan([], config=Config(store=StoreConfig(url=url)))
    lines = [line for line in made.script.splitlines() if "POLLUX_STORE_URL" in line]
    assert lines == ([] if exported is None else [f"export POLLUX_STORE_URL={shlex.quote(exported)}"])
    assert "secret" not in made.script


@pytest.mark.parametrize(
    "line",
    [
        "export POLLUX_STORE_URL=postgresql://agent:secret@db.site/pollux",
        "#SBATCH --export=ALL,POLLUX_STORE_URL=postgresql://db/pollux?sslpassword=secret",
        "psql 'postgresql+psycopg://db.site/pollux?user=a&PASSWORD=secret' -c 'SELECT 1'",
    ],
)
def test_that_a_script_with_a_password_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(UsageError, match=r"line 3 of the script .* ~/\.pgpass") as refused:
        plan([], stdin=f"#!/bin/bash\n# mine\n{line}\npollux run -- python train.py\n".encode())
    assert "secret" not in str(refused.value)
    words = line if line.startswith("#") else "true"
    with pytest.raises(UsageError, match=r"~/\.pgpass"):
        plan(["--wrap", f"{words}\n{line}"])


@pytest.mark.parametrize(
    "line",
    [
        "export POLLUX_STORE_URL=postgresql://agent:$PASSWORD@db.site/pollux",
        'psql "postgresql://db.site/pollux?password=${MINE}"',
        "psql postgresql://agent@db.site/pollux?sslmode=verify-full",
    ],
)
def test_that_a_script_that_names_no_password_is_submitted(line: str) -> None:
    assert line in plan([], stdin=f"#!/bin/bash\n{line}\n".encode()).script


def test_that_an_admins_template_replaces_ours_and_its_errors_are_named(tmp_path: Path) -> None:
    config = Config(templates=TemplatesConfig(dir=str(tmp_path)))
    (tmp_path / "adaptive.sbatch.j2").write_text("{{ interpreter }}\nmodule load site\n{{ body }}\n")
    assert plan([], config=config).script.startswith("#!/bin/bash\nmodule load site\n")
    (tmp_path / "adaptive.sbatch.j2").write_text("{{ interpreter }}\n{{ no_such_name }}\n")
    with pytest.raises(ConfigError, match=r"adaptive\.sbatch\.j2.*no_such_name"):
        plan([], config=config)


# ---------------------------------------------------------------------------------------- hostile names


@pytest.mark.parametrize(
    "name",
    [
        "two words",
        "it's",
        'say "hi"',
        "$(touch pwned)",
        "`touch pwned`",
        "a\nb",
        "ünïcode ☃",
        "-rf",
        "a;b&c|d",
        "\udcff\udcfe",
    ],
)
def test_that_hostile_names_reach_the_shell_as_they_are(tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"x{name}"
    folder.mkdir()
    (folder / "s.sh").write_text(
        '#!/bin/bash\nprintf "%s\\0" "$POLLUX_CHECKPOINT_DIR" "$POLLUX_TOKEN_FILE" "$@"\n'
    )
    made = plan(["s.sh", name], cwd=folder, config=Config(store=StoreConfig(url=f"sqlite:////{name}")))
    script = tmp_path / "script"
    script.write_bytes(made.script.encode("utf-8", "surrogateescape"))
    done = subprocess.run(
        ["bash", "-u", str(script), *made.arguments],
        cwd=tmp_path,
        env={**os.environ, "SLURM_JOB_ID": "7"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == b""
    expected = [str(made.checkpoint_dir), str(made.token_file), name]
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(value) for value in expected]
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("comment", ["it's $(touch pwned)", 'a "b" \\c', "line\nline", "é\udcff"])
def test_that_the_plan_as_shell_commands_does_the_same(tmp_path: Path, comment: str) -> None:
    body = b"#!/bin/bash\necho 'END_OF_SCRIPT' \xff\n"
    made = plan([f"--comment={comment}", "--checkpoint-dir", str(tmp_path / "it's")], stdin=body)
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "sbatch").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (fake / "sbatch").chmod(0o755)
    done = subprocess.run(
        ["bash"],
        input=made.as_shell_commands().encode("utf-8", "surrogateescape"),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{fake}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    words = [*made.options, str(made.script_file), *made.arguments]
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]
    assert made.script_file.read_bytes() == made.script.encode("utf-8", "surrogateescape")
    assert not (tmp_path / "pwned").exists()


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-gpus", "4", "--max-gpus", "2"], "--min-gpus 4 is above --max-gpus 2"),
        (["--min-gpus", "0"], "--min-gpus takes a whole number"),
        (["--min-gpus=-1"], "--min-gpus takes a whole number"),
        (["--max-gpus=two"], "--max-gpus takes a whole number"),
        (["--max-gpus=1e3"], "--max-gpus takes a whole number"),
        (["--max-gpus=99999999"], "--max-gpus takes a whole number"),
        (["--min-gpus"], "--min-gpus needs a value"),
        (["--dry-run=yes"], "--dry-run takes no value"),
        (["--checkpoint-dir="], "names no directory"),
        (["--min-gpus=2", "-G1"], "--gpus requests 1 GPU, below --min-gpus 2: leave it out, and"),
        (
            ["--max-gpus=3", "--gpus-per-node=2", "-N2"],
            "requests 4 GPUs, above --max-gpus 3: request 3 or fewer, or",
        ),
        (["--max-gpus=3", "-N4-8"], "--nodes requests 4 GPUs, one on each node, above --max-gpus 3"),
        (["--min-run=7"], "--min-run takes a number with s, m, h, d or w, .*, or always, not '7'"),
        (["--finish-by=soon"], "--finish-by takes 'Mon 09:00' or .*; not 'soon'"),
        (["--finish-by=2026-01-01T09:00Z"], "--finish-by '2026-01-01T09:00Z' is in the past"),
        (["--array=1-4"], "array"),
        (["-a", "1-4"], "array"),
        (["--no-requeue"], "requeue"),
        (["--exclusive"], "--exclusive: an adaptive job owns single GPUs"),
        (["--uid=1000"], "as that user"),
        (["-N1", ":", "-N2", "s.sh"], "heterogeneous"),
        (["--wrap=true", "s.sh"], "--wrap"),
        (["no-such.sbatch"], "no-such.sbatch cannot be read: No such file"),
        (["/"], "cannot be read: Is a directory"),
        (["--chdir=/", "x" * 300], "cannot be read: File name too long"),
    ],
)
def test_that_invalid_submissions_are_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan(words)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("environ", "stdin", "message"),
    [
        ({"SBATCH_ARRAY_INX": "1-2"}, SIMPLE, "SBATCH_ARRAY_INX"),
        ({"SBATCH_NO_REQUEUE": "1"}, SIMPLE, "SBATCH_NO_REQUEUE"),
        ({}, "#!/bin/sh\n#SBATCH --array=1-2\n", "#SBATCH --array"),
        ({}, "#!/usr/bin/env python3\nprint()\n", "pollux run -- python3"),
        ({}, "", "the script on standard input does not look like"),
    ],
)
def test_that_variables_and_directives_are_refused_as_well(
    environ: dict[str, str], stdin: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan([], environ=environ, stdin=stdin.encode())


def test_that_requeue_on_the_command_line_overrides_a_variable() -> None:
    assert plan(["--requeue"], environ={"SBATCH_NO_REQUEUE": "1"}).options[0] == "--requeue"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--max-gpu", "--max-gpus"),
        ("--max-gpu=2", "--max-gpus"),
        ("--max_gpus=2", "--max-gpus"),
        ("--maxgpus", "--max-gpus"),
        ("--min-gpu", "--min-gpus"),
        ("--checkpoint_dir=/x", "--checkpoint-dir"),
        ("--total-tme=1-0", "--total-time"),
        ("--dryrun", "--dry-run"),
        ("--allow-unconfirmd", "--allow-unconfirmed"),
    ],
)
def test_that_a_misspelled_option_of_ours_is_refused_with_the_right_one(word: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"there is no option {word.partition('=')[0]}; do you mean {meant}"):
        plan(["-p", "main", word, "2", "--wrap=true"])


@pytest.mark.parametrize(
    "words", [["--dry-run"], ["--max-gpus=2"], ["--lr", "0.1", "--min-gpus", "2"], ["--total-time", "2d"]]
)
def test_that_one_of_our_options_after_the_script_is_refused_with_the_cure(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "my train.sbatch").write_text(SIMPLE)
    option = next(word for word in words if word.startswith("--") and word != "--lr").partition("=")[0]
    message = (
        f"{option} comes after the script my train.sbatch, .*nothing was submitted. Put {option} before the "
        f"script; .*: pollux sbatch \\[options\\] -- 'my train.sbatch' {option}$"
    )
    with pytest.raises(UsageError, match=message):
        plan(["-p", "main", "my train.sbatch", *words], cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["--", "train.sbatch", "--dry-run", "--lr=1"], ("--dry-run", "--lr=1")),
        (["train.sbatch", "--lr=1", "--", "--dry-run"], ("--lr=1", "--", "--dry-run")),
        (["train.sbatch", "--max-gpu", "-dry-run", "dry-run"], ("--max-gpu", "-dry-run", "dry-run")),
    ],
)
def test_that_a_script_may_have_options_with_the_names_of_ours(
    tmp_path: Path, words: list[str], arguments: tuple[str, ...]
) -> None:
    (tmp_path / "train.sbatch").write_text(SIMPLE)
    made = plan(["--max-gpus=4", *words], cwd=tmp_path)
    assert (made.arguments, made.is_dry_run, made.terms.max_gpus) == (arguments, False, 4)


@pytest.mark.parametrize("name", [option.name for option in SBATCH_OPTIONS])
def test_that_no_option_of_sbatch_and_no_abbreviation_of_one_is_refused_as_misspelled(name: str) -> None:
    for length in range(1, len(name) + 1):
        options = parse_words([f"--{name[:length]}=1"], exact=POLLUX_OPTIONS).options
        refuse_misspelled_options(options)


@pytest.mark.parametrize("word", ["--checkpoint=5", "--max-gpu-power=300", "--gpu-clocks", "--x11", "--bell"])
def test_that_options_that_a_site_added_are_passed_to_sbatch(tmp_path: Path, word: str) -> None:
    (tmp_path / "train.sbatch").write_text(SIMPLE)
    assert word in plan([word, "train.sbatch"], cwd=tmp_path).options
