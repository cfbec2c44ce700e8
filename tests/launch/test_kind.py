"""The kind of a job: what two trainings may differ in and still be the same."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.launch import kind
from pollux_slurm.launch.kind import checked_kind

SCRIPT = "#SBATCH --gpus=1\npollux run -- python train.py --layers 12 --lr 0.1 $ARGS\n"
kind_of = functools.partial(kind.kind_of, folder=Path("/home/ada"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--seed 1", "--seed 2"),
        ("--seed 1", "--seed=2"),
        ("--random-state=1", "--random-state=7"),
        ("trainer.seed=1", "trainer.seed=2"),
        ("--output_dir /a", "--output_dir '/b c'"),
        ("hydra.run.dir=/a", "hydra.run.dir=/b"),
        ("--checkpoint-dir a", "--checkpoint-dir b"),
        ("--run-name monday", "--run-name tuesday"),
        ("--wandb-name x", "--wandb-name y"),
        ("--resume a.pt", "--resume b.pt"),
        ("--result a.json", "--result=/b/2.json"),
        ("--seed 1", ""),
        ("SEED=1", ""),
        ("--layers=12", "--layers 12"),
        ("--run-name 'monday 1' --output /a", "--run-name='tuesday, the second'"),
    ],
)
def test_that_seeds_names_outputs_and_spelling_do_not_change_the_kind(one: str, other: str) -> None:
    assert kind_of(SCRIPT, shlex.split(one)) == kind_of(SCRIPT, shlex.split(other))
    assert kind_of(f"python t.py {one} --x 1") == kind_of(f"python  t.py {other} \\\n  --x 1\n# a comment")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--layers 12", "--layers 48"),
        ("--layers=12", "--layers=48"),
        ("--model-name gpt2", "--model-name gpt2-xl"),
        ("--model gpt2", "--model bert"),
        ("model.name=a", "model.name=b"),
        ("--epochs 3", "--epochs 30"),
        ("--data-path /a", "--data-path /b"),
        ("--seed 1 --bf16", "--seed 1"),
    ],
)
def test_that_whatever_may_change_the_training_changes_the_kind(one: str, other: str) -> None:
    assert kind_of(SCRIPT, shlex.split(one)) != kind_of(SCRIPT, shlex.split(other))
    assert kind_of(f"python t.py {one}") != kind_of(f"python t.py {other}")


def test_that_directives_do_not_change_the_kind_and_no_argument_can_be_read_from_it() -> None:
    more = SCRIPT.replace("--gpus=1", "--gpus=4")
    assert kind_of(SCRIPT) == kind_of(more)
    assert len(kind_of(SCRIPT)) == 16
    assert set(kind_of(SCRIPT)) <= set("0123456789abcdef")


def test_that_the_same_words_in_another_folder_are_another_kind(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "link").symlink_to("digits")
    kinds = [kind_of(SCRIPT, folder=tmp_path / name) for name in ("digits", "charlm", "link", "charlm/..")]
    assert kinds[0] != kinds[1]
    assert kinds[2] == kinds[0]
    assert kinds[3] == kind_of(SCRIPT, folder=tmp_path)


def test_that_an_owner_may_name_a_kind_or_have_none() -> None:
    assert checked_kind("gpt2-small") == "gpt2-small"
    assert checked_kind("") is None
    with pytest.raises(UsageError, match="--kind"):
        checked_kind("two words")
