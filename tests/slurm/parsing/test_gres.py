from __future__ import annotations

import pytest

from pollux_slurm.slurm.parsing.gres import Gres, accounted_gpus, count_gpus, parse_gres


def gres(name: str, type_: str | None, count: int) -> Gres:
    return Gres(name=name, type=type_, count=count)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
        (None, ()),
        ("gpu:4", (gres("gpu", None, 4),)),
        ("gpu:t4:4", (gres("gpu", "t4", 4),)),
        ("gpu:t4:4(S:0-1)", (gres("gpu", "t4", 4),)),
        ("gpu:t4:3(IDX:0-1,3)", (gres("gpu", "t4", 3),)),
        ("gpu:t4:0(IDX:N/A)", (gres("gpu", "t4", 0),)),
        ("gpu:(null):2(IDX:0-1)", (gres("gpu", None, 2),)),
        ("gpu:t4:1(IDX:0,2),gpu:a100:2(IDX:1-2)", (gres("gpu", "t4", 1), gres("gpu", "a100", 2))),
        ("gres:gpu:5", (gres("gpu", None, 5),)),
        ("gres:gpu:t4:5", (gres("gpu", "t4", 5),)),
        ("gres/gpu:t4:5", (gres("gpu", "t4", 5),)),
        ("gres/gpu=5", (gres("gpu", None, 5),)),
        ("gres/gpu:t4=5", (gres("gpu", "t4", 5),)),
        ("gres:gpu", (gres("gpu", None, 1),)),
        ("gres:gpu:a100", (gres("gpu", "a100", 1),)),
        ("gpu:1g.5gb:7", (gres("gpu", "1g.5gb", 7),)),
        ("shard:4K", (gres("shard", None, 4096),)),
        ("nsight:no_consume:1", (gres("nsight", None, 1),)),
        (
            "gpu:t4:4,bandwidth:lustre:no_consume:4G",
            (gres("gpu", "t4", 4), gres("bandwidth", "lustre", 4 << 30)),
        ),
        ("mps:t4:50(50/100,0/100,0/100)", (gres("mps", "t4", 50),)),
        ("gpu:2,fpga:a:b:c:1", (gres("gpu", None, 2), gres("fpga", None, 1))),  # of a form that is not known
    ],
)
def test_that_every_form_of_slurm_is_read(text: str | None, expected: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == expected


@pytest.mark.parametrize("text", [":", "gpu:t4:4:5", "gpu::4", "gpu:4,", "gpu:t4:x:4"])
def test_that_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="generic resource"):
        parse_gres(text)


@pytest.mark.parametrize(
    ("text", "count", "type_", "others"),
    [
        ("gpu:t4:2,gpu:t4:1", 3, "t4", set()),
        ("gpu:t4:2,gpu:a100:1", 3, None, set()),
        ("gres/gpu:2,gres/gpu:t4:2", 2, "t4", set()),
        ("gpu:2,shard:8,license:1", 2, None, {"shard", "license"}),
        ("nvme:1", 0, None, {"nvme"}),
    ],
)
def test_that_gpus_are_counted_apart_from_other_resources(
    text: str, count: int, type_: str | None, others: set[str]
) -> None:
    counted = count_gpus(parse_gres(text))
    assert (counted.count, counted.type, counted.others) == (count, type_, others)


@pytest.mark.parametrize(
    ("tres", "count"),
    [
        ("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1", 4),
        ("cpu=8,gres/gpu:a100=4,gres/gpu:t4=1", 5),
        ("gres/gpu=0", 0),
        ("cpu=8,gres/gpumem=4", None),
        ("", None),
    ],
)
def test_that_accounted_gpus_are_the_total_else_the_sum_of_their_types(tres: str, count: int | None) -> None:
    assert accounted_gpus(tres) == count
