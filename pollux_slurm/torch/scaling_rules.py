"""The learning rate's scaling rules, where scripts written for AdaptDL look for them."""

from pollux_slurm.torch.gradients.scaling_rules import (
    AdamScale,
    AdaScale,
    LEGWScale,
    LinearScale,
    NoScale,
    ScalingMoment,
    ScalingRule,
    SqrtScale,
)

__all__ = [
    "AdaScale",
    "AdamScale",
    "LEGWScale",
    "LinearScale",
    "NoScale",
    "ScalingMoment",
    "ScalingRule",
    "SqrtScale",
]
