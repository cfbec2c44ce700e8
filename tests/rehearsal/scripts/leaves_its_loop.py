"""Reads one batch, then trains on half of the data in each epoch and leaves the loop by `break`."""

import torch
from problem import NUM_EXAMPLES, make_data, make_network

import pollux_slurm.torch as pt


def main() -> None:
    pt.init_process_group()
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    model = pt.AdaptiveDataParallel(network, optimizer)
    loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
    print(next(iter(loader))[0].shape)
    for _epoch in pt.remaining_epochs_until(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if loader.num_examples_done >= NUM_EXAMPLES // 2:
                break


if __name__ == "__main__":
    main()
