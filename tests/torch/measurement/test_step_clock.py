"""Step times from stamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pollux_slurm.torch.measurement.step_clock import StepClock
from pollux_slurm.torch.measurement.timestamps import HostInstant, Instant


@dataclass
class Stamp:
    """A moment that the test sets, known when the test says so."""

    at_s: float
    known: bool = True

    def is_known(self) -> bool:
        return self.known

    def seconds_since(self, earlier: Instant) -> float:
        assert isinstance(earlier, Stamp)
        return self.at_s - earlier.at_s


class Hands:
    """The clock's hands: `at` is the time that the next stamp takes."""

    def __init__(self) -> None:
        self.at = 0.0
        self.known = True
        self.clock = StepClock(lambda: Stamp(self.at, self.known), monotonic=lambda: self.at)

    def step(self, *ends: float, local_end: float | None, sync_end: float | None = None, **more: Any) -> None:
        for end in ends:
            self.at = end
            self.clock.pass_done()
        self.clock.step_done(
            local_end=None if local_end is None else Stamp(local_end, self.known),
            sync_end=None if local_end is None else Stamp(sync_end or local_end, self.known),
            **{"atomic_batch_size": 8, "num_examples": 16, "is_typical": True, **more},
        )


@pytest.fixture
def hands() -> Hands:
    """A clock whose two unsteady steps are over at second 2."""
    hands = Hands()
    hands.clock.start()
    hands.step(1.0, local_end=0.9)
    hands.step(2.0, local_end=1.9)
    assert hands.clock.measured() == []
    return hands


def test_that_waiting_for_others_is_taken_off_the_gradients_time(hands: Hands) -> None:
    hands.step(12.0, local_end=7.0, sync_end=10.0)
    (step,) = hands.clock.measured()
    assert (step.grad_time_s, step.iter_time_s, step.total_s) == (7.0, 10.0, 10.0)
    assert (step.atomic_batch_size, step.num_examples) == (8, 16)


def test_that_accumulating_passes_count_for_the_gradient_and_not_for_the_last_pass(hands: Hands) -> None:
    hands.step(4.0, 6.0, 9.0, local_end=8.0, sync_end=8.5)
    (step,) = hands.clock.measured()
    assert step.grad_time_s == pytest.approx((2 + 2 + 2.5) / 3)
    assert (step.iter_time_s, step.total_s) == (3.0, 7.0)


def test_that_the_time_between_steps_belongs_to_the_next_one(hands: Hands) -> None:
    hands.step(3.0, local_end=2.9)
    hands.step(7.0, local_end=6.9)
    assert [step.iter_time_s for step in hands.clock.measured()] == [1.0, 4.0]


def test_that_waiting_for_batches_is_measured_apart_and_stays_in_the_step(hands: Hands) -> None:
    # Second 2 to 5 waiting, one more for the pass; 6 to 6.5 waiting, half a second for the next.
    hands.at = 5.0
    hands.clock.batch_ready()
    hands.at = 6.0
    hands.clock.pass_done()
    hands.at = 6.5
    hands.clock.batch_ready()
    hands.step(7.0, local_end=6.9)
    (step,) = hands.clock.measured()
    assert (step.data_s, step.total_s) == (3.5, 5.0)
    assert step.grad_time_s == pytest.approx(2.5)
    hands.clock.batch_ready()
    hands.step(8.0, local_end=7.9)
    assert [step.data_s for step in hands.clock.measured()] == [0.0]


def test_that_an_interruption_belongs_to_no_step(hands: Hands) -> None:
    hands.at = 100.0
    hands.clock.start()
    hands.step(101.0, local_end=100.5)
    assert [step.total_s for step in hands.clock.measured()] == [1.0]


def test_that_untypical_and_unmeasured_steps_are_left_out(hands: Hands) -> None:
    hands.step(3.0, local_end=2.9, is_typical=False)
    hands.step(4.0, local_end=None)
    assert hands.clock.measured() == []


def test_that_steps_after_a_disturbance_are_left_out(hands: Hands) -> None:
    hands.clock.disturb()
    for end in (3.0, 4.0, 9.0):
        hands.step(end, local_end=end)
    assert [step.total_s for step in hands.clock.measured()] == [5.0]


def test_that_times_not_known_yet_are_given_later_and_once(hands: Hands) -> None:
    hands.known = False
    hands.step(3.0, local_end=2.9)
    pending = hands.clock._unresolved[0]
    assert hands.clock.measured() == []
    for stamp in (pending.marks[-1], pending.sync_end):
        stamp.known = True  # type: ignore[attr-defined]
    assert len(hands.clock.measured()) == 1
    assert hands.clock.measured() == []


def test_that_a_device_that_never_answers_takes_bounded_memory(hands: Hands) -> None:
    hands.known = False
    for index in range(500):
        hands.step(3.0 + index, local_end=3.0 + index)
    assert len(hands.clock._unresolved) == 64


def test_that_the_hosts_instants_go_forward() -> None:
    early, late = HostInstant(), HostInstant()
    assert late.is_known()
    assert late.seconds_since(early) >= 0
