"""A correct script with much state that a move could lose.

It has a schedule that steps once per batch, a parameter group that is added in a later epoch, an average of
the weights, a metric, a validation over an ordinary loader, workers, a batch that may vary, and an argument.
"""

import argparse

import torch
from problem import make_data, make_network
from torch.utils.data import DataLoader

import pollux_slurm.torch as pt


class Average(pt.State):
    """An average of weights that is part of the checkpoints."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.model = torch.optim.swa_utils.AveragedModel(network)
        super().__init__("average")

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    pt.init_process_group()
    network = make_network()
    optimizer = torch.optim.SGD(network[0].parameters(), lr=0.02, momentum=0.9)
    loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True, num_workers=1)
    loader.autoscale_batch_size(40, local_bsz_bounds=(2, 20), gradient_accumulation=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, epochs=options.epochs, steps_per_epoch=len(loader), cycle_momentum=False
    )
    model = pt.AdaptiveDataParallel(network, optimizer, scheduler)
    average, losses = Average(network), pt.Accumulator()
    for epoch in pt.remaining_epochs_until(options.epochs):
        if epoch == 1:
            rates = {"lr": 0.01, "initial_lr": 0.01, "max_lr": 0.02, "min_lr": 0.001}  # as the schedule asks
            optimizer.add_param_group({"params": network[2].parameters(), **rates})
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if loader.is_stepping:
                average.model.update_parameters(network)
            losses["sum"] += loss.item() * len(inputs)
            losses["count"] += len(inputs)
        with losses.synchronized():
            print(f"epoch {epoch}: loss {losses['sum'] / losses['count']:.4f}", flush=True)
            losses.clear()
        with torch.no_grad():
            for inputs, _ in DataLoader(make_data(), batch_size=40):
                network(inputs)


if __name__ == "__main__":
    main()
