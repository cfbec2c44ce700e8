"""What a process holds after many regroups: threads, descriptors, groups, hooks and memory stay the same."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pollux_slurm.torch as pt
from tests.torch.regroup.members import Members
from tests.torch.scripts import Numbered

pytestmark = pytest.mark.torch
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def train_and_count(directory: str, width: int) -> list[dict[str, Any]]:
    """Train until the test says so; return what this process held after each regroup."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, in_place=True)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.001)
    model = pt.AdaptiveDataParallel(module, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=16, shuffle=True)
    rows: dict[int, dict[str, Any]] = {}
    regroups: list[int] = []
    pt.on_regroup(lambda rank, world_size: regroups.append(world_size))
    for _ in pt.remaining_epochs_until(10**9):
        for inputs, targets, _ in loader:
            started = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            times = rows.setdefault(len(regroups), {"step_s": []})["step_s"]
            times.append(time.perf_counter() - started)
            rows[len(regroups)] |= _held(module, model)
            time.sleep(0.005)
        if dist.get_world_size() == 1 and (Path(directory) / "enough").exists():
            break
    return [{**row, "step_s": statistics.median(row["step_s"])} for row in rows.values()]


def _held(module: torch.nn.Module, model: torch.nn.Module) -> dict[str, Any]:
    world = dist.distributed_c10d._world
    hooks = [one._forward_hooks for one in (module, model)] + [one._backward_hooks for one in (module, model)]
    return {
        "world_size": dist.get_world_size(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "groups": len(world.pg_map),
        "group_names": len(world.pg_names),
        "module_hooks": sum(map(len, hooks)),
        "parameter_hooks": sum(len(parameter._backward_hooks or ()) for parameter in module.parameters()),
        "memory_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES,
    }


def _rows_of_the_one_that_stays(folder: Path, num_regroups: int, width: int) -> list[dict[str, Any]]:
    """Start two members; rank 0 leaves, and then others join and leave in turn."""
    directory = folder / "checkpoints-of-the-job"
    members = Members(folder, 2, train_and_count, str(directory), width)
    answers = [members.resize(1, [0])]
    answers += [members.resize(1 + index % 2) for index in range(1, num_regroups)]
    assert all(answer is not None and answer.is_done for answer in answers), f"{answers}\n{members.output()}"
    (directory / "enough").touch()
    codes = members.wait()
    assert set(codes.values()) == {0}, members.output()
    rows: list[dict[str, Any]] = members.results()[0]
    # With the start, and as many steps as its time allows after each.
    assert len(rows) == num_regroups + 1
    return rows


_EXACT = ("threads", "descriptors", "groups", "group_names", "module_hooks", "parameter_hooks")


def _assert_flat(rows: list[dict[str, Any]]) -> None:
    for size in (1, 2):
        held = [{key: row[key] for key in _EXACT} for row in rows[1:] if row["world_size"] == size]
        assert held == [held[0]] * len(held)


def test_that_threads_descriptors_groups_and_hooks_are_the_same_after_each_regroup(tmp_path: Path) -> None:
    _assert_flat(_rows_of_the_one_that_stays(tmp_path, 5, 8))


@pytest.mark.full
def test_that_two_hundred_regroups_leave_a_process_as_it_was(tmp_path: Path) -> None:
    rows = _rows_of_the_one_that_stays(tmp_path, 201, 100_000)
    for row in rows[:: max(1, len(rows) // 20)]:
        print(row)
    _assert_flat(rows)
    # Adam's state and the weights take 7 MB: one that was kept at each regroup would be seen.
    memory = [row["memory_bytes"] / 1e6 for row in rows if row["world_size"] == 1]
    early, late = statistics.median(memory[5:25]), statistics.median(memory[-20:])
    assert late - early < 40, f"{early:.0f} MB after 10 to 50 regroups, {late:.0f} MB at the end"
