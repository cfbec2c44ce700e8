"""Effective options from command line, environment and script, and the GPUs that they request."""

from __future__ import annotations

import pytest

from pollux_slurm.slurm.sbatch.options import parse_words
from pollux_slurm.slurm.sbatch.request import (
    RequestedGpus,
    SbatchRequest,
    count_gres_gpus,
    count_requested_gpus,
    parse_gpu_list,
    time_limit_s,
)


def request(
    command_line: str = "", environ: dict[str, str] | None = None, directives: str = ""
) -> SbatchRequest:
    return SbatchRequest.of(
        parse_words(command_line.split()).options, environ or {}, parse_words(directives.split()).options
    )


def test_that_the_command_line_overrides_variables_and_these_the_script() -> None:
    everywhere = request("-G 1", {"SBATCH_GPUS": "2"}, "--gpus=3")
    assert everywhere.value("gpus") == "1"
    assert everywhere.source_of("gpus") == "--gpus"
    without_line = request("", {"SBATCH_GPUS": "2"}, "--gpus=3")
    assert without_line.value("gpus") == "2"
    assert without_line.source_of("gpus") == "SBATCH_GPUS"
    script_only = request("", {}, "--gpus=3")
    assert script_only.value("gpus") == "3"
    assert script_only.source_of("gpus") == "#SBATCH --gpus"
    assert request().value("gpus") is None


def test_that_the_last_of_several_counts() -> None:
    assert request("-G 1 --gpus=4").value("gpus") == "4"


def test_that_of_options_that_override_each_other_the_higher_source_counts() -> None:
    assert (
        request("--requeue", {"SBATCH_NO_REQUEUE": "1"}).effective_name("requeue", "no-requeue") == "requeue"
    )
    assert (
        request("", {"SBATCH_NO_REQUEUE": ""}, "--requeue").effective_name("requeue", "no-requeue")
        == "no-requeue"
    )
    assert request("--requeue --no-requeue").effective_name("requeue", "no-requeue") == "no-requeue"


@pytest.mark.parametrize(
    ("variable", "value", "given"),
    [
        ("SBATCH_NO_REQUEUE", "", True),
        ("SBATCH_NO_REQUEUE", "yes", True),
        ("SBATCH_NO_REQUEUE", "2", True),
        ("SBATCH_NO_REQUEUE", "0", False),
        ("SBATCH_NO_REQUEUE", "no", False),
        ("SBATCH_ARRAY_INX", "", False),
        ("SBATCH_ARRAY_INX", "1-2", True),
    ],
)
def test_that_variables_set_flags_as_sbatchs_manual_says(variable: str, value: str, given: bool) -> None:
    assert request("", {variable: value}).given("no-requeue", "array") is given


@pytest.mark.parametrize(
    ("line", "num_gpus"),
    [
        ("--gpus=4", 4),
        ("-G a100:2,t4:1", 3),
        ("--gpus=2 -N 2 --gpus-per-node=1", 2),
        ("--gpus-per-node=4", 4),
        ("--gpus-per-node=t4:4 -N 3", 12),
        ("--gpus-per-node=4 --nodes=2-4", 8),
        ("--gpus-per-task=2 -n 3", 6),
        ("--gpus-per-task=2 --ntasks-per-node=2 -N 2", 8),
        ("--gres=gpu", 1),
        ("--gres=gpu:2 -N 2", 4),
        ("--gres=gpu:a100:2", 2),
        ("--gres=gpu:a100", 1),
        ("--gres=gres:gpu:3", 3),
        ("--gres=gres/gpu:3", 3),
        ("--gres=nvme:1,gpu:t4:1,gpu:a100:2", 3),
        ("--tres-per-task=cpu=2,gres/gpu=2 -n 2", 4),
        ("--gpus-per-socket=2 --sockets-per-node=2", None),
        ("-n 4 --ntasks-per-gpu=2", None),
        ("--gpus=many", None),
        ("--gres=gpu:t4:two", None),
        ("--gpus-per-node=2 -N x", None),
    ],
)
def test_that_requested_gpus_are_counted_over_all_nodes(line: str, num_gpus: int | None) -> None:
    assert count_requested_gpus(request(line)) == RequestedGpus(is_given=True, num_gpus=num_gpus)


@pytest.mark.parametrize("line", ["", "-N 2 -n 4", "--gres=nvme:1", "--gres=none", "--tres-per-task=cpu:4"])
def test_that_a_request_without_gpus_is_recognised(line: str) -> None:
    assert count_requested_gpus(request(line)) == RequestedGpus(is_given=False, num_gpus=None)


def test_that_malformed_counts_are_none() -> None:
    assert parse_gpu_list("4") == 4
    assert [parse_gpu_list(text) for text in ("", "t4:", "-1", "٣", "1e3", "9" * 40)] == [None] * 6
    assert count_gres_gpus("gpu:t4:") is None


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("2-0", 172_800),
        ("2-1:30", 178_200),
        ("2-1:30:15", 178_215),
        ("0", None),
        ("infinite", None),
        ("UNLIMITED", None),
        ("-5", None),
        ("1:2:3:4", None),
        ("", None),
        (None, None),
    ],
)
def test_that_time_limits_are_read_in_all_of_sbatchs_forms(text: str | None, limit_s: float | None) -> None:
    assert time_limit_s(text) == limit_s
