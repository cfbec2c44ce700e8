"""Train on handwritten digits, with one run in TensorBoard, W&B or MLflow over all moves of the job.

    pollux sbatch train.sbatch --tracker wandb      on a Slurm cluster
    python train.py --tracker mlflow                anywhere else

TensorBoard's events go to `runs/digits`. The lines that make training adaptive are marked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import pollux_slurm.torch as pt  # adaptive
from pollux_slurm.trackers import Tracker  # adaptive

sys.path.append(str(Path(__file__).resolve().parents[2]))
from examples.common import Audit, conclude, parse_options, print_on_rank_0
from examples.digits.train import load_digits, make_network, test


def open_run(tracker: str) -> Any:
    """Open the tool's run; called on rank 0 only."""
    if tracker == "wandb":
        import wandb

        return wandb.init(project="digits")
    if tracker == "mlflow":
        import mlflow

        mlflow.set_experiment("digits")
        return mlflow.start_run()
    from torch.utils.tensorboard import SummaryWriter

    # What a run that was killed has logged after its last checkpoint is replaced.
    return SummaryWriter("runs/digits", purge_step=pt.finished_steps() + 1)


def main() -> int:
    options = parse_options(
        __doc__, epochs=15, target_accuracy=0.95, tracker=["tensorboard", "wandb", "mlflow"]
    )
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    train_set, test_set = load_digits()
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)

    pt.init_process_group("gloo")  # adaptive
    network = pt.AdaptiveDataParallel(network, optimizer)  # adaptive
    loader = pt.AdaptiveDataLoader(train_set, batch_size=32, shuffle=True, seed=options.seed)  # adaptive
    loader.autoscale_batch_size(256, local_bsz_bounds=(8, 64), gradient_accumulation=True)  # adaptive
    tracker = Tracker(lambda: open_run(options.tracker), every=10)  # adaptive

    options.emulate_device.announce()
    audit = Audit(options.epochs, len(train_set))
    audit.runs.append(torch.distributed.get_world_size())
    for epoch in pt.remaining_epochs_until(options.epochs):  # adaptive
        for images, labels, indices in loader:
            options.emulate_device.compute(len(images))
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            tracker.log({"loss": loss})
            if not loader.is_padding:
                audit.count(epoch, indices)
        accuracy = test(network, test_set)
        tracker.log({"test_accuracy": accuracy, "epoch": epoch + 1})
        print_on_rank_0(f"epoch {epoch}: batch {loader.current_batch_size}, test accuracy {accuracy:.4f}")
    return conclude(options, audit, test(network, test_set))


if __name__ == "__main__":
    sys.exit(main())
