"""What is read of a run's events, also of one that was started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.agent.rehearsal_protocol import StopMethod
from pollux_slurm.rehearsal.lost_state import wrong_samples
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, read_events, split_by_start
from tests.rehearsal.builders import (
    CHECKPOINT,
    MIDDLE,
    START,
    error,
    loop,
    loop_end,
    micro_batch,
    script_run,
)


@pytest.mark.parametrize(
    "broken", [b'{"kind": "mic', b"[1]", b'{"no kind": 1}', b"\x00\x00", b"\xff", b"[" * 100_000]
)
def test_that_a_line_that_is_no_event_is_left_out(tmp_path: Path, broken: bytes) -> None:
    file = tmp_path / "events-0-0.jsonl"
    file.write_bytes(b'{"kind": "start"}\n' + broken + b'\n{"kind": "finished"}\n{"kind": "cut')
    events, offset = read_events(file, 0)
    assert [event["kind"] for event in events] == ["start", "finished"]
    # The last line may be on its way.
    assert file.read_bytes()[offset:] == b'{"kind": "cut'


def test_that_each_start_after_a_lack_of_memory_is_a_run() -> None:
    starts = [START, loop(), micro_batch(10, 5), error("OutOfMemoryError", "out of memory")]
    again = [START, micro_batch(10, 3), loop_end()]
    run = script_run([*starts, *again], [*starts, *again], exit_code=0)
    first, second = split_by_start(run, None)
    assert (first.outcome, second.outcome) == (RunOutcome.OUT_OF_MEMORY, RunOutcome.FINISHED)
    assert [len(events) for events in (*first.events, *second.events)] == [4, 4, 3, 3]
    assert first.stop is not None
    assert first.stop.method is StopMethod.OUT_OF_MEMORY
    assert next(split_by_start(run, MIDDLE)).stop == MIDDLE
    # One of a single start, or of none, is left as it is.
    for events in (again, []):
        alone = script_run(events)
        assert list(split_by_start(alone, MIDDLE)) == [alone]


def test_that_samples_before_a_lack_of_memory_count_up_to_the_last_checkpoint() -> None:
    begun = [START, loop(), micro_batch(0, 5), CHECKPOINT, micro_batch(5, 10)]
    again = [START, loop(), micro_batch(5, 5), micro_batch(10, 5), micro_batch(15, 5), loop_end()]
    runs = list(split_by_start(script_run([*begun, *again]), None))
    assert list(wrong_samples([runs])) == []
