"""`PolluxTrainer` in one process: the same training as transformers' Trainer, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

from pollux_slurm.errors import UsageError
from pollux_slurm.huggingface import PolluxTrainer, PolluxTrainerMixin
from tests.huggingface import trainer_scripts as scripts
from tests.huggingface.test_accelerator import reset
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


def assert_same(ours: dict[str, Any], plain: dict[str, Any]) -> None:
    for key in ("losses", "norms", "rates", "epochs", "global_step", "train_loss", "flos"):
        assert ours[key] == pytest.approx(plain[key], rel=1e-4), key
    for name, weight in plain["weights"].items():
        torch.testing.assert_close(ours["weights"][name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 4},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3, "eval_strategy": "epoch"},
    ],
    ids=["epochs", "max_steps", "evaluations"],
)
def test_that_it_trains_as_trainer_does_in_one_process(tmp_path: Path, options: dict[str, Any]) -> None:
    # Trainer of transformers 5.3 divides gradients twice under accumulation: compare whole batches there.
    plain = scripts.train_plainly(str(tmp_path), Trainer, **options)
    reset()
    with joined():
        ours = scripts.train_plainly(str(tmp_path), PolluxTrainer, **options)
    assert plain["global_step"] == options.get("max_steps", 8)
    assert_same(ours, plain)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing_factor": 0.2},
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"max_grad_norm": 0.2, "weight_decay": 0.1},
        {"dataloader_num_workers": 1},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_that_its_options_have_the_same_effect(tmp_path: Path, options: dict[str, Any]) -> None:
    options = options | {"num_train_epochs": 1}
    plain = scripts.train_plainly(str(tmp_path), Trainer, **options)
    reset()
    with joined():
        ours = scripts.train_plainly(str(tmp_path), PolluxTrainer, **options)
    assert plain["losses"] != scripts_losses_without(tmp_path, options)
    if "bf16" in options:
        # Gradients are rounded to 8 bits before they are added up.
        assert ours["losses"] == pytest.approx(plain["losses"], rel=2e-2)
    else:
        assert_same(ours, plain)


def scripts_losses_without(tmp_path: Path, options: dict[str, Any]) -> list[float]:
    """Return other losses, so that an option without effect is noticed where it must change them."""
    changing = {"label_smoothing_factor", "bf16", "max_grad_norm"} & set(options)
    if not changing:
        return []
    reset()
    return list(scripts.train_plainly(str(tmp_path), Trainer, num_train_epochs=1)["losses"])


@pytest.mark.parametrize("options", [{}, {"bf16": True}])
def test_that_an_evaluation_before_training_changes_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    results = []
    for evaluates in (False, True):
        reset()
        with joined():
            arguments = scripts.make_arguments(str(tmp_path), num_train_epochs=1, **options)
            trainer = PolluxTrainer(
                scripts.make_model(), arguments, train_dataset=scripts.Texts(), eval_dataset=scripts.Texts(10)
            )
            before = trainer.evaluate()["eval_loss"] if evaluates else None
            trainer.train()
            results.append(trainer.evaluate()["eval_loss"])
            assert before is None or results[-1] < before
    assert results[0] == pytest.approx(results[1], rel=1e-4)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        texts = scripts.Texts(64)
        return (texts[index] for index in range(64))


def hub_dataset() -> Any:
    texts = scripts.Texts(64)
    rows = [texts[index] for index in range(64)]
    columns = {name: [row[name].tolist() for row in rows] for name in ("input_ids", "labels")}
    return datasets.Dataset.from_dict(columns | {"unused": [0] * 64}).with_format("torch")


@pytest.mark.parametrize(
    "make",
    [Stream, hub_dataset, lambda: hub_dataset().to_iterable_dataset()],
    ids=["stream", "datasets", "datasets stream"],
)
def test_that_streams_and_datasets_of_the_hub_train_alike(tmp_path: Path, make: Any) -> None:
    options = {"max_steps": 6}
    plain = scripts.train_plainly(str(tmp_path), Trainer, **options)
    reset()
    with joined():
        ours = scripts.train_plainly(str(tmp_path), PolluxTrainer, dataset=make(), **options)
    for key in ("losses", "norms", "rates", "global_step", "train_loss"):
        assert ours[key] == pytest.approx(plain[key], rel=1e-4), key


class Classifier(torch.nn.Module):
    """A model whose loss is a mean over the labels that are not −100, and that knows no number of items."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = torch.nn.Embedding(scripts.VOCABULARY, 8)
        self.head = torch.nn.Linear(8, scripts.VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embedding(input_ids))
        return {
            "loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


def test_that_a_mean_over_labels_is_one_over_the_global_batch_whatever_the_model_knows(
    tmp_path: Path,
) -> None:
    # Trainer itself would take the mean of the means: so it gets whole batches.
    whole = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    plain = scripts.train_plainly(str(tmp_path), Trainer, model=Classifier(), **whole)
    reset()
    with joined():
        ours = scripts.train_plainly(str(tmp_path), PolluxTrainer, model=Classifier())
    plain["flos"] = ours["flos"]
    assert_same(ours, plain)


def test_that_lengths_are_grouped_and_each_example_is_used_once(tmp_path: Path) -> None:
    class Recording(PolluxTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            used.extend(inputs["input_ids"][:, 0].tolist())
            return super().compute_loss(model, inputs, *args, **kwargs)

    used: list[int] = []
    with joined():
        arguments = scripts.make_arguments(
            str(tmp_path), train_sampling_strategy="group_by_length", num_train_epochs=1
        )
        trainer = Recording(scripts.make_model(), arguments, train_dataset=scripts.Texts())
        trainer.train()
        # The script's own arguments are as it made them.
        assert arguments.gradient_accumulation_steps == 4
        with pytest.raises(UsageError, match="twice"):
            trainer.train()
    assert sorted(used) == list(range(scripts.NUM_EXAMPLES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auto_find_batch_size": True}, "smaller micro-batches"),
        ({"ddp_static_graph": True}, "ddp_static_graph"),
        ({"train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
        ({"optim": "lomo"}, "backward pass"),
        ({"enable_jit_checkpoint": True}, "SIGTERM"),
        ({"dataloader_in_order": False}, "in_order"),
        ({"resume_from_checkpoint": "somewhere"}, "from_pretrained"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_that_what_cannot_be_right_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with joined(), pytest.raises(UsageError, match=message):
        refused_training(tmp_path, options)


def refused_training(tmp_path: Path, options: dict[str, Any]) -> None:
    resume = options.pop("resume_from_checkpoint", None)
    arguments = scripts.make_arguments(str(tmp_path), **options)
    trainer = PolluxTrainer(scripts.make_model(), arguments, train_dataset=scripts.Texts())
    trainer.train(resume_from_checkpoint=resume)


class Lenient(Trainer):
    """Another library's trainer, which takes options of any name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.quux = options.pop("quux")
        super().__init__(*args, **options)


class LenientAndAdaptive(PolluxTrainerMixin, Lenient):
    pass


class Preferring(Trainer):
    """A trainer with an order of its own, as trl's DPOTrainer and GRPOTrainer have."""

    def __init__(
        self, model: Any, ref_model: Any = None, args: Any = None, train_dataset: Any = None
    ) -> None:
        self.ref_model = ref_model
        super().__init__(model=model, args=args, train_dataset=train_dataset)


class PreferringAndAdaptive(PolluxTrainerMixin, Preferring):
    pass


@pytest.mark.parametrize("number", [1, 3, 4])
def test_that_a_trainer_with_an_order_of_its_own_trains(tmp_path: Path, number: int) -> None:
    given = {
        "model": scripts.make_model(),
        "ref_model": "another",
        "args": scripts.make_arguments(str(tmp_path), max_steps=2),
        "train_dataset": scripts.Texts(),
    }
    by_name = dict(list(given.items())[number:])
    with joined():
        trainer = PreferringAndAdaptive(*list(given.values())[:number], **by_name)
        assert trainer.ref_model == "another"
        assert trainer.train().global_step == 2
        with pytest.raises(UsageError, match="PreferringAndAdaptive needs its training arguments: args="):
            PreferringAndAdaptive(given["model"])
        with pytest.raises(TypeError, match="multiple values for argument 'args'"):
            PolluxTrainer(given["model"], given["args"], args=given["args"])


def test_that_an_unknown_option_is_refused_by_the_name_that_was_meant(tmp_path: Path) -> None:
    arguments = scripts.make_arguments(str(tmp_path))
    with joined():
        with pytest.raises(
            UsageError, match="PolluxTrainer has no option max_batchsize: do you mean max_batch"
        ):
            PolluxTrainer(scripts.make_model(), arguments, max_batchsize=64)
        with pytest.raises(UsageError, match="do you mean eval_dataset"):
            PolluxTrainer(scripts.make_model(), arguments, eval_dataest=scripts.Texts())
        assert LenientAndAdaptive(scripts.make_model(), arguments, quux=1).quux == 1


def test_that_a_loader_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    class Own(PolluxTrainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=4)

    with joined():
        trainer = Own(
            scripts.make_model(), scripts.make_arguments(str(tmp_path)), train_dataset=scripts.Texts()
        )
        with pytest.raises(UsageError, match=r"accelerator\.prepare"):
            trainer.train()
        with pytest.raises(UsageError, match="a job for each trial"):
            trainer.hyperparameter_search()


class Own(PolluxTrainerMixin, Seq2SeqTrainer):
    """A user's subclass, with a training step and a count of items of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.stepped: list[int] = []
        super().__init__(*args, **options)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        assert num_items_in_batch is None
        self.stepped.append(len(inputs["input_ids"]))
        return super().training_step(model, inputs, num_items_in_batch)

    def items_in_batch(self, inputs: Any) -> int | None:
        return None


def test_that_a_users_own_subclass_gets_micro_batches_and_says_what_its_loss_counts(tmp_path: Path) -> None:
    with joined():
        arguments = Seq2SeqTrainingArguments(
            **{
                name: value
                for name, value in scripts.make_arguments(str(tmp_path), num_train_epochs=1).to_dict().items()
                if name
                in ("output_dir", "per_device_train_batch_size", "num_train_epochs", "use_cpu", "report_to")
            },
            gradient_accumulation_steps=4,
            disable_tqdm=True,
        )
        trainer = Own(scripts.make_model(), arguments, train_dataset=scripts.Texts())
        assert trainer.train().global_step == 5
    assert trainer.stepped == [4] * 16 + [3, 3]


def test_that_the_throughput_of_a_limit_in_steps_counts_global_batches(tmp_path: Path) -> None:
    for batching, size in (({}, 16), ({"global_batch_size": 12}, 12)):
        reset()
        with joined():
            trainer = PolluxTrainer(
                scripts.make_model(),
                scripts.make_arguments(str(tmp_path), max_steps=2),
                train_dataset=scripts.Texts(),
                **batching,
            )
            metrics = trainer.train().metrics
        ratio = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
        assert ratio == pytest.approx(size, rel=0.1)


class Speech(torch.utils.data.Dataset[Any]):
    """Noise with texts of 1 to 8 letters."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        labels = torch.randint(1, 8, (8,), generator=generator)
        labels[1 + index % 8 :] = -100
        return {"input_values": torch.randn(400, generator=generator), "labels": labels}


def make_speech_model(reduction: str) -> Wav2Vec2ForCTC:
    torch.manual_seed(2)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 8}
    dropouts = ("hidden", "attention", "activation", "feat_proj", "final")
    config = Wav2Vec2Config(
        **sizes,
        **{f"{name}_dropout": 0.0 for name in dropouts},
        conv_dim=(8, 8),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        layerdrop=0.0,
        apply_spec_augment=False,
        ctc_loss_reduction=reduction,
    )
    return Wav2Vec2ForCTC(config)


def test_that_a_ctc_loss_is_a_mean_over_examples(tmp_path: Path) -> None:
    results = []
    for size, accumulation in ((8, 1), (2, 4)):
        reset()
        with joined():
            options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
            options |= {"dataset": Speech(), "model": make_speech_model("mean"), "num_train_epochs": 1}
            results.append(scripts.train_plainly(str(tmp_path), PolluxTrainer, **options))
    assert_same(results[1], results[0])
    reset()
    with joined(), pytest.raises(UsageError, match="ctc_loss_reduction"):
        PolluxTrainer(make_speech_model("sum"), scripts.make_arguments(str(tmp_path)))


class Synchronizing(PolluxTrainer):
    """Notes in each micro-batch whether the step is whole with it."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.noted.append(self.accelerator.sync_gradients)
        return super().training_step(*args, **kwargs)


def test_that_a_step_is_whole_in_its_last_micro_batch_only(tmp_path: Path) -> None:
    with joined():
        trainer = Synchronizing(
            scripts.make_model(),
            scripts.make_arguments(str(tmp_path), max_steps=2),
            train_dataset=scripts.Texts(),
        )
        trainer.noted = []
        trainer.train()
    assert trainer.noted == [False, False, False, True] * 2
