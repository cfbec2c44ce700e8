"""Step times from timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pollux_slurm.torch.measurement.step_clock import StepClock
from pollux_slurm.torch.measurement.timestamps import HostTimestamp, Timestamp


@dataclass
class Stamp:
    """A moment that the test sets, known when the test sets it so."""

    at_s: float
    known: bool = True

    def is_known(self) -> bool:
        return self.known

    def seconds_since(self, earlier: Timestamp) -> float:
        assert isinstance(earlier, Stamp)
        return self.at_s - earlier.at_s


class Hands:
    """A step clock whose time the test sets: `at` is the time of the next stamp, `stamps` are all so far."""

    def __init__(self) -> None:
        self.at = 0.0
        self.known = True
        self.stamps: list[Stamp] = []
        self.clock = StepClock(lambda: self._stamp(self.at), monotonic=lambda: self.at)

    def _stamp(self, at_s: float) -> Stamp:
        self.stamps.append(Stamp(at_s, self.known))
        return self.stamps[-1]

    def make_known(self) -> None:
        """Let the device reach all moments so far."""
        for stamp in self.stamps:
            stamp.known = True

    def step(self, *ends: float, local_end: float | None, sync_end: float | None = None, **more: Any) -> None:
        for end in ends:
            self.at = end
            self.clock.micro_batch_done()
        self.clock.step_done(
            local_end=None if local_end is None else self._stamp(local_end),
            sync_end=None if local_end is None else self._stamp(sync_end or local_end),
            **{"atomic_batch_size": 8, "num_examples": 16, "is_typical": True, **more},
        )


@pytest.fixture
def hands() -> Hands:
    """A clock whose two unmeasured first steps end at second 2."""
    hands = Hands()
    hands.clock.start()
    hands.step(1.0, local_end=0.9)
    hands.step(2.0, local_end=1.9)
    assert hands.clock.measured() == []
    return hands


def test_that_waiting_for_other_replicas_is_not_in_the_gradients_time(hands: Hands) -> None:
    hands.step(12.0, local_end=7.0, sync_end=10.0)
    (step,) = hands.clock.measured()
    assert (step.micro_batch_s, step.last_time_s, step.total_s) == (7.0, 10.0, 10.0)
    assert (step.atomic_batch_size, step.num_examples) == (8, 16)


def test_that_accumulating_micro_batches_count_for_t_grad_and_not_for_t_iter(
    hands: Hands,
) -> None:
    hands.step(4.0, 6.0, 9.0, local_end=8.0, sync_end=8.5)
    (step,) = hands.clock.measured()
    assert step.micro_batch_s == pytest.approx((2 + 2 + 2.5) / 3)
    assert (step.last_time_s, step.total_s) == (3.0, 7.0)


def test_that_the_time_between_steps_belongs_to_the_next_one(hands: Hands) -> None:
    hands.step(3.0, local_end=2.9)
    hands.step(7.0, local_end=6.9)
    assert [step.last_time_s for step in hands.clock.measured()] == [1.0, 4.0]


def test_that_waiting_for_batches_is_measured_separately_and_is_part_of_the_step(hands: Hands) -> None:
    # It waits from second 2 to 5 and computes until 6, then waits until 6.5 and computes until 7.
    hands.at = 5.0
    hands.clock.batch_ready()
    hands.at = 6.0
    hands.clock.micro_batch_done()
    hands.at = 6.5
    hands.clock.batch_ready()
    hands.step(7.0, local_end=6.9)
    (step,) = hands.clock.measured()
    assert (step.data_s, step.total_s) == (3.5, 5.0)
    assert step.micro_batch_s == pytest.approx(2.5)
    hands.clock.batch_ready()
    hands.step(8.0, local_end=7.9)
    assert [step.data_s for step in hands.clock.measured()] == [0.0]


def test_that_an_interruption_belongs_to_no_step(hands: Hands) -> None:
    hands.at = 100.0
    hands.clock.start()
    hands.step(101.0, local_end=100.5)
    assert [step.total_s for step in hands.clock.measured()] == [1.0]


def test_that_untypical_steps_and_those_without_a_reduction_are_left_out(hands: Hands) -> None:
    hands.step(3.0, local_end=2.9, is_typical=False)
    hands.step(4.0, local_end=None)
    assert hands.clock.measured() == []


def test_that_skipped_steps_are_left_out(hands: Hands) -> None:
    hands.clock.skip_steps()
    for end in (3.0, 4.0, 9.0):
        hands.step(end, local_end=end)
    assert [step.total_s for step in hands.clock.measured()] == [5.0]


def test_that_times_not_known_yet_are_returned_later_and_once(hands: Hands) -> None:
    hands.known = False
    hands.step(3.0, local_end=2.9)
    assert hands.clock.measured() == []
    hands.make_known()
    assert len(hands.clock.measured()) == 1
    assert hands.clock.measured() == []


def test_that_a_device_that_never_answers_takes_bounded_memory(hands: Hands) -> None:
    hands.known = False
    for index in range(500):
        hands.step(3.0 + index, local_end=3.0 + index)
    hands.make_known()
    assert len(hands.clock.measured()) == 64


def test_that_the_hosts_timestamps_go_forward() -> None:
    early, late = HostTimestamp(), HostTimestamp()
    assert late.is_known()
    assert late.seconds_since(early) >= 0
