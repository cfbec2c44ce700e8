"""Which option of a submission is the anchor's, and which the wings'."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.config import MovesConfig
from pollux_slurm.errors import LaunchError, UsageError
from pollux_slurm.launch.submit.anchor_request import AnchorRequest, divide
from pollux_slurm.launch.submit.room_for_wings import Room
from pollux_slurm.launch.submit.wing_request import WingRequest
from pollux_slurm.slurm.sbatch.batch_script import parse_script
from pollux_slurm.slurm.sbatch.options import parse_directives, parse_words
from pollux_slurm.slurm.sbatch.request import SbatchRequest

SCRIPT = """#!/bin/bash
# a comment
#SBATCH --job-name=train -p gpu
#SBATCH --gpus=a100:4 --mem-per-gpu=20G -o "log of %j"
#SBATCH --time=10:00 --constraint=fast

train
"""


PLAIN = "#!/bin/sh\ntrain\n"


def divided(
    *words: str,
    script: str = SCRIPT,
    environ: dict[str, str] | None = None,
    room: Room = Room(),  # noqa: B008 - frozen
    **moves: object,
) -> AnchorRequest:
    parsed = parse_script(script, source="it")
    request = SbatchRequest.of(parse_words(words).options, environ or {}, parse_directives(parsed.directives))
    config = MovesConfig(**moves)  # type: ignore[arg-type]
    return divide(request, parsed.head, num_gpus=1, config=config, room=room)


def times(*words: str, **room_s: float) -> tuple[list[str], float | None]:
    """Return the anchor's --time and the training's limit of a script that names none."""
    found = divided(*words, script=PLAIN, room=Room(**room_s))  # type: ignore[arg-type]
    return [one for one in found.directives if one.startswith("--time=")], found.wings.time_limit_s


def test_that_gpus_nodes_and_time_are_the_wings() -> None:
    found = divided()
    assert found.head == '# a comment\n#SBATCH --job-name=train -p gpu\n#SBATCH "--output=log of %j"\n\n'
    assert found.wings.start_options() == [
        *("--constraint=fast", "--gpus=a100:4", "--mem-per-gpu=20G", "--partition=gpu", "--cpus-per-gpu=1"),
    ]
    assert found.wings.time_limit_s == 600.0
    assert "--time=1450" in found.directives
    assert found.wings.newcomer_options("n3", 2) == [
        *("--constraint=fast", "--partition=gpu", "--nodes=1", "--nodelist=n3", "--gpus=a100:2"),
        *("--cpus-per-gpu=1", "--mem-per-gpu=20G"),
    ]


def test_that_an_anchor_has_of_its_allowance_what_limits_leave() -> None:
    assert times("--time=30") == (["--time=1470"], 1800.0)
    assert times("--time=30", max_anchor_s=3600.0) == (["--time=60"], 1800.0)
    assert times("--time=60", max_anchor_s=3600.0) == (["--time=60"], 3600.0)
    # A job that no limit allows is Slurm's to refuse, as without an anchor.
    assert times("--time=90", max_anchor_s=3600.0) == (["--time=90"], 5400.0)


def test_that_the_limit_that_squeue_shows_of_an_anchor_is_explained() -> None:
    (note,) = divided("--time=30").notes
    assert note.startswith("squeue shows the job, which is an anchor, with a limit of 1470 minutes: the")
    assert "training's 30, and" in note
    assert divided("--time=30", wait_allowance_s=0.0).notes == ()
    assert divided(script=PLAIN).notes == ()


def test_that_a_training_without_a_limit_has_its_partitions_default() -> None:
    assert times() == ([], None)
    assert times(default_s=600.0) == (["--time=1450"], 600.0)
    assert times(default_s=600.0, max_anchor_s=600.0) == (["--time=10"], 600.0)
    assert times("--time=20", default_s=600.0) == (["--time=1460"], 1200.0)


@pytest.mark.parametrize("value", ["UNLIMITED", "soon"])
def test_that_a_time_that_is_no_number_is_left_to_sbatch(value: str) -> None:
    assert times(f"--time={value}", default_s=600.0) == ([f"--time={value}"], None)
    assert f"--time={value}" in divided(f"--time={value}").wings.start_options()


@pytest.mark.parametrize("value", ["a b", 'a"b', "it's", "a\\\\b", "a#b", "plain"])
def test_that_a_value_stays_what_it_is(value: str) -> None:
    script = f"#!/bin/sh\n#SBATCH --gpus=1 --output='{value}'\ntrain\n" if "'" not in value else None
    script = script or f'#!/bin/sh\n#SBATCH --gpus=1 --output="{value}"\ntrain\n'
    before = parse_directives(parse_script(script, source="it").directives)
    head = divided(script=script).head
    after = parse_directives(parse_script(f"#!/bin/sh\n{head}train\n", source="it").directives)
    assert [one.value for one in after] == [one.value for one in before if one.name == "output"]


def test_that_options_of_the_command_line_are_divided_letter_by_letter() -> None:
    found = divided("-vN2", "-n", "8", "--mail-type=END", "--exclude", "n9", "-HJname")
    assert found.options == ("--verbose", "--mail-type=END", "--hold", "--job-name=name")
    assert {"--nodes=2", "--ntasks=8", "--exclude=n9"} < set(found.wings.start_options())


def test_that_variables_of_sbatch_are_the_wings_too() -> None:
    found = divided(environ={"SBATCH_GPUS": "3", "SBATCH_ACCOUNT": "physics"}, script="#!/bin/sh\ntrain\n")
    assert "--gpus=3" in found.wings.options
    assert "--account=physics" in found.wings.options
    assert "SBATCH_GPUS" in found.hidden_variables
    assert "SBATCH_ACCOUNT" not in found.hidden_variables


def test_that_a_site_may_keep_anchors_apart() -> None:
    found = divided(anchor_partition="cpu", anchor_memory="1G", wait_allowance_s=60.0)
    assert {"--partition=cpu", "--mem-per-cpu=1G", "--time=11"} <= set(found.directives)
    assert "-p gpu" not in found.head
    assert "--partition=gpu" in found.wings.options


def test_that_an_anchor_asks_for_no_memory_by_node_and_on_some_sites_for_none() -> None:
    for memory, given in (("512M", ["--mem-per-cpu=512M"]), ("", [])):
        directives = divided("--gpus=1", "--mem=64G", anchor_memory=memory).directives
        assert [one for one in directives if one.startswith("--mem")] == given


@pytest.mark.parametrize(
    ("words", "cpus", "memory"),
    [
        (("--gpus=4", "--cpus-per-task=8", "--ntasks=2", "--mem=64G"), 4, "16384M"),
        (("--gpus=4", "--cpus-per-gpu=3", "--mem-per-gpu=500"), 3, "500"),
        (("--gpus-per-node=2", "--nodes=2", "--mem=10G"), 1, "5120M"),
        (("--gpus=2",), 1, None),
        (("--gpus=2", "--nodes=0", "--mem=2G"), 1, "1024M"),
        (("--gpus=2", f"--mem-per-cpu={'9' * 400}"), 1, None),
    ],
)
def test_that_newcomers_get_what_the_first_have_by_gpu(
    words: tuple[str, ...], cpus: int, memory: str | None
) -> None:
    found = divided(*words, script="#!/bin/sh\ntrain\n").wings
    assert (found.cpus_per_gpu, found.memory_per_gpu) == (cpus, memory)


def test_that_licenses_are_the_anchors_and_a_reboot_that_of_a_start() -> None:
    found = divided("--licenses=solver:1", "--reboot", script=PLAIN)
    assert found.options == ("--licenses=solver:1",)
    assert found.wings.start_options() == ["--reboot", "--gpus=1", "--cpus-per-gpu=1"]
    assert not {"--reboot", "--licenses=solver:1"} & set(found.wings.newcomer_options("n3", 1))
    in_script = divided(script="#!/bin/sh\n#SBATCH --licenses=solver:1 --gpus=1\ntrain\n")
    assert in_script.head == "#SBATCH --licenses=solver:1\n"


def test_that_two_types_of_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="one type of GPU"):
        divided("--gpus=a100:1,t4:1")


def test_that_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    request = divided().wings
    request.write(tmp_path / "p.wing")
    assert WingRequest.read(tmp_path / "p.wing") == request
    assert (tmp_path / "p.wing").stat().st_mode & 0o777 == 0o600
    (tmp_path / "p.wing").write_text("{}")
    with pytest.raises(LaunchError):
        WingRequest.read(tmp_path / "p.wing")
