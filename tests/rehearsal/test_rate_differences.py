from __future__ import annotations

from typing import Any

from pollux_slurm.rehearsal.findings import Finding, Level
from pollux_slurm.rehearsal.rate_differences import schedules_that_differ
from pollux_slurm.rehearsal.runs.script_run import ScriptRun
from tests.rehearsal.builders import MIDDLE, script_run, snapshot, state, stepped


def scheduler_at(steps: float, type_: str = "OneCycleLR", *names: str) -> dict[str, Any]:
    schedules = {name: state(steps, kind="scheduler", type_=type_) for name in names or ("one",)}
    return snapshot("epoch", epoch=1, objects=schedules)


def test_that_a_schedule_that_differs_after_moves_is_found() -> None:
    first_run = script_run([snapshot("epoch"), scheduler_at(24.0)])
    (finding,) = schedules_that_differ(first_run, [[script_run([scheduler_at(12.0)])]])
    assert (finding.level, finding.kind) == (Level.CHANGE, "schedule")
    assert not list(schedules_that_differ(first_run, [[script_run([scheduler_at(24.0)])]]))


def test_that_schedules_that_differ_are_one_finding() -> None:
    first_run = script_run([snapshot("epoch"), scheduler_at(24.0, "StepLR", "one", "two")])
    (finding,) = schedules_that_differ(
        first_run, [[script_run([scheduler_at(12.0, "StepLR", "one", "two")])]]
    )
    assert finding.text.startswith("`one` (StepLR) and `two` (StepLR) differ after")


RATES = [0.001, 0.002, 0.003, 0.004]


def with_rates(*rates: float, begin: int = 1, decay: float = 0.1, processes: int = 1) -> ScriptRun:
    events = [
        stepped(step, rates={"learning rate (a)": rate, "weight decay (a)": decay})
        for step, rate in enumerate(rates, start=begin)
    ]
    return script_run(events, *[[]] * (processes - 1), stop=MIDDLE)


def found(*chain: ScriptRun, first_run: ScriptRun | None = None) -> list[Finding]:
    return list(schedules_that_differ(first_run or with_rates(*RATES), [chain]))


def test_that_a_rate_that_begins_anew_after_a_move_is_found_whoever_sets_it() -> None:
    rewound = with_rates(0.001, 0.002, begin=3, processes=2)
    (finding,) = found(with_rates(*RATES[:2]), rewound)
    assert (finding.level, finding.kind) == (Level.CHANGE, "rates")
    assert finding.text == (
        "The learning rate (a) was 0.001 at step 3 after a move in mid-epoch (1 → 2 processes), 0.003 "
        "without one."
    )
    assert "finished_steps()" in finding.cure
    decayed = with_rates(*RATES[2:], begin=3, decay=0.2)
    (finding,) = found(with_rates(*RATES[:2]), decayed)
    assert finding.text.startswith("The weight decay (a) was 0.2 at step 3 after a move")


def test_that_rates_that_follow_the_step_are_accepted() -> None:
    assert not found(with_rates(*RATES[:2]), with_rates(*RATES[2:], begin=3))


def test_that_rates_that_differ_without_a_move_are_not_blamed_on_one() -> None:
    assert not found(with_rates(0.0015, 0.0025), with_rates(0.009, begin=3))


def test_that_rates_that_follow_the_loss_are_not_compared() -> None:
    first_run = script_run([scheduler_at(1.0, "ReduceLROnPlateau"), *with_rates(*RATES).events[0]])
    assert not found(with_rates(*RATES[:2]), with_rates(0.001, begin=3), first_run=first_run)
