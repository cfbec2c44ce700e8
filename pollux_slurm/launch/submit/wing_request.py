"""What the wings of a job ask of Slurm: the part of its owner's request that shapes and places it.

Also their script and environment, with which a submission is tried before there is an anchor.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pollux_slurm.errors import LaunchError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.rendering import render
from pollux_slurm.system.private_files import read_private, write_private

ANCHOR_VARIABLE = "POLLUX_ANCHOR"
"""The file of the wing request, in the environment of an anchor's batch script."""

TEMPLATE = "wing.sbatch.j2"
# Not `python -m`: that would import modules from the working directory, from the user's own files.
PROGRAM = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    "from pollux_slurm.launch.anchor.wing_program import main; main()"
)
# Variables that describe the anchor's own allocation, or are options of sbatch and srun.
_OF_ALLOCATION = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_")
_OF_DEVICES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    }
)
_OF_SHAPE = frozenset(
    {
        *("nodes", "nodelist", "nodefile", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core"),
        *("ntasks-per-socket", "ntasks-per-tres", "cpus-per-task", "cpus-per-gpu", "mincpus", "contiguous"),
        *("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "tres-per-task", "spread-job"),
        *("mem", "mem-per-gpu", "mem-per-cpu", "distribution", "switches", "use-min-nodes"),
    }
)
# Nodes are rebooted before a training starts, not before processes join it.
_OF_START = frozenset({"reboot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WingRequest:
    """A job's request.

    `options` are the owner's, as `--name` or `--name=value`. Newcomers have `gpu_type`, where that was named,
    and for each GPU `cpus_per_gpu` and `memory_per_gpu`, in Slurm's form, None for Slurm's default.
    `time_limit_s` is that of the training.
    """

    options: tuple[str, ...]
    cpus_per_gpu: int = 1
    memory_per_gpu: str | None = None
    gpu_type: str | None = None
    time_limit_s: float | None = None

    def start_options(self) -> list[str]:
        """Return the options of the wing that a start begins with: the owner's own."""
        return list(self.options)

    def newcomer_options(self, node: str, num_gpus: int) -> list[str]:
        """Return the options of a wing of so many GPUs on one node."""
        left_out = _OF_SHAPE | _OF_START
        kept = [option for option in self.options if option[2:].partition("=")[0] not in left_out]
        of_type = "" if self.gpu_type is None else f"{self.gpu_type}:"
        memory = [] if self.memory_per_gpu is None else [f"--mem-per-gpu={self.memory_per_gpu}"]
        return [
            *kept,
            "--nodes=1",
            f"--nodelist={node}",
            f"--gpus={of_type}{num_gpus}",
            f"--cpus-per-gpu={self.cpus_per_gpu}",
            *memory,
        ]

    def write(self, file: Path) -> None:
        """Write a new file that only its owner can read. Raises `OSError` and `PrivateFileError`."""
        write_private(file, json.dumps(asdict(self)).encode(), is_new=True)

    @classmethod
    def read(cls, file: Path) -> WingRequest:
        """Return the request in a file. Raises `LaunchError`."""
        try:
            data = parse_json(read_private(file))
            return cls(**(data | {"options": tuple(str(option) for option in data["options"])}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(f"what the job's wings ask for cannot be read: {error}") from None


def wing_script(order_file: Path, template_dir: str | None) -> str:
    """Return the script of a wing, which finds its orders in a file."""
    command = shlex.join([sys.executable, "-c", PROGRAM, str(order_file)])
    return render(TEMPLATE, override_dir=template_dir, command=command)


def wing_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with which a wing is submitted, without what describes another job."""
    return {
        key: value
        for key, value in environ.items()
        if key == "SLURM_CONF" or not (key.startswith(_OF_ALLOCATION) or key in _OF_DEVICES)
    }


def per_gpu(amount: str, num_gpus: int) -> str:
    """Return a part of an amount of memory in Slurm's form, such as `64G`, rounded up."""
    number, unit = (amount[:-1], amount[-1]) if amount[-1:].isalpha() else (amount, "M")
    factor = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}.get(unit.upper(), 1)
    return f"{max(math.ceil(float(number) * factor / max(num_gpus, 1)), 1)}M"
