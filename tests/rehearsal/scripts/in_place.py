"""A script that asks to be moved in place; with an argument, it has a fault that shows only then."""

import sys

import torch
import torch.distributed as dist
from problem import make_data, make_network

import pollux_slurm.torch as pt

FAULT = "".join(sys.argv[1:])


def main() -> None:
    pt.init_process_group(in_place=True)
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    model = pt.AdaptiveDataParallel(network, optimizer)
    loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
    if FAULT == "kept_size":
        world_size = dist.get_world_size()
    if FAULT == "kept_share":
        share = 1.0 / dist.get_world_size()
    if FAULT == "fails_to_join" and pt.is_joining():
        raise FileExistsError("results")
    if FAULT == "communicates_first":
        dist.all_reduce(torch.ones(1))
    if FAULT == "kept_list":
        losses = [None] * dist.get_world_size()
    sums = pt.Accumulator()
    for epoch in pt.remaining_epochs_until(50):
        if FAULT == "communicates_in_epoch":
            dist.all_reduce(torch.ones(1))
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            if FAULT == "kept_share":
                loss = loss * share
            loss.backward()
            optimizer.step()
            sums["loss"] += loss.item() * len(inputs)
        if FAULT == "kept_size":
            print(world_size)
        if FAULT == "kept_list":
            dist.all_gather_object(losses, loss.item())
            print(losses)
        with sums.synchronized():
            print(f"epoch {epoch}: loss {sums['loss'] / len(loader.dataset):.4f}", flush=True)
            sums.clear()


try:
    main()
finally:
    if FAULT == "communicates_last":
        dist.all_reduce(torch.ones(1))
