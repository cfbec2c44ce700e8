"""Updates two averages of the weights after each micro-batch, and two correctly, which must not be found."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt


class Shadow(pt.State):
    """An average written by hand, which puts a new tensor in place of the old one."""

    def __init__(self, name: str, network: torch.nn.Module) -> None:
        self.weights = {key: weight.detach().clone() for key, weight in network.named_parameters()}
        super().__init__(name)

    def update(self, network: torch.nn.Module) -> None:
        for key, weight in network.named_parameters():
            self.weights[key] = 0.99 * self.weights[key] + 0.01 * weight.detach()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.weights

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.weights = dict(state)


class Average(pt.State):
    def __init__(self, name: str, network: torch.nn.Module) -> None:
        self.averaged = torch.optim.swa_utils.AveragedModel(network)
        super().__init__(name)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.averaged.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.averaged.load_state_dict(state)


pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
model = pt.AdaptiveDataParallel(network, optimizer)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
loader.autoscale_batch_size(40, local_bsz_bounds=(2, 10), gradient_accumulation=True)
shadow, sound_shadow = Shadow("shadow", network), Shadow("sound shadow", network)
average, sound_average = Average("average", network), Average("sound average", network)
for _ in pt.remaining_epochs_until(100):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        shadow.update(network)
        average.averaged.update_parameters(network)
        if loader.is_stepping:
            sound_shadow.update(network)
            sound_average.averaged.update_parameters(network)
