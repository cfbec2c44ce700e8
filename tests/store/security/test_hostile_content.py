"""Reports that are well-formed JSON and hostile in what they say: refused, or bounded and the job's own."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pollux_slurm.store.contract.interface import Store
from tests.store.builders import Step, advance, at, numbers_in, observation, plan, registration, token_of
from tests.store.conftest import set_clock
from tests.store.untrusted_client import BAD_REPORT, Connection, raw_report, send

REFUSED = {
    "a run number of 32 bits and one more": {"run_number": 2**32},
    "a run number with a fraction": {"run_number": 0.5},
    "a run number below zero": {"run_number": -1},
    "no run number": {"run_number": None},
    "a restart count beyond any": {"restart_count": 10**6 + 1},
    "a sequence of 64 bits and one more": {"sequence": 2**63},
    "a sequence that leaves room for no other": {"sequence": 2**63 - 1},
    "more steps than any job": {"num_steps": 10**15 + 1},
    "a phase in capitals": {"phase": "TRAINING"},
    "a phase with a zero-width space": {"phase": "training\u200b"},
    "a phase with a control character": {"phase": "training\u001b[2J"},
    "a phase as long as the message may be": {"phase": "x" * 60_000},
    "a phase with a null character": {"phase": "training\u0000"},
    "no nodes": {"gpus_per_node": []},
    "a node without GPUs": {"gpus_per_node": [0]},
    "a node of 2,000 GPUs": {"gpus_per_node": [2000]},
    "half a GPU": {"gpus_per_node": [0.5]},
    "a null node": {"gpus_per_node": [None]},
    "a node that is a list": {"gpus_per_node": [[2]]},
    "nodes that are an object": {"gpus_per_node": {"0": 2}},
    "a batch whose product overflows": {"global_batch_size": 2**63 - 1},
    "a batch beyond 64 bits": {"atomic_batch_size": 2**64},
    "a batch of half its sizes": {"accumulation_steps": None},
    "an epoch beyond any": {"epoch": 2**62},
    "more progress than a double holds": {"progress": 10**400},
    "progress backwards from zero": {"progress": -1e-300},
    "progress that is not a number": {"progress": "NaN"},
    "a throughput of denormal size": {"throughput": 5e-324},
    "a throughput of infinity": {"throughput": "Infinity"},
    "an efficiency above one": {"efficiency": 1.5},
    "a first step before the process began": {"first_step_s": -5.0},
    "a restore of an age": {"restore_s": 1e8},
    "a step that takes no time": {"step_time_s": 0.0},
    "a largest batch below the first": {"initial_batch_size": 64, "max_batch_size": 32},
    "a smallest batch above the largest": {"min_atomic": 4096},
    "a largest atomic batch below the smallest": {"min_atomic": 8, "max_atomic": 4},
    "a variance without a norm": {"grad_sqr": None},
    "a norm that overflows when squared": {"grad_sqr": 1e200},
    "noise from above to below": {"noise_low": 100.0, "noise_high": 1.0},
    "noise without a low end": {"noise_low": None, "noise_high": 5.0},
    "a step time of part of its parameters": {"gamma": None},
    "a step time of zero": {"alpha_g": 0.0, "beta_g": 0.0},
    "a synchronisation of an age": {"alpha_n": 1e7},
    "an overlap that no root survives": {"gamma": 1e-300},
    "an overlap beyond any": {"gamma": 308.0},
    "more nodes seen than GPUs": {"max_gpus_seen": 1, "max_nodes_seen": 2},
    "more GPUs seen than there are": {"max_gpus_seen": 2**31 - 1},
    "a checkpoint of less than nothing": {"size_bytes": -1, "blocked_s": 1.0},
    "a checkpoint larger than any disk": {"size_bytes": 2**63 - 1, "blocked_s": 1.0},
    "a checkpoint that gave time back": {"size_bytes": 1, "blocked_s": -3600.0},
}


def test_that_hostile_content_is_refused_whole(client: Connection, victims: Store) -> None:
    for name, content in REFUSED.items():
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(1, **content))
        assert refused.value.sqlstate in BAD_REPORT, name
    assert victims.history.runs("1") == ()
    assert victims.history.models("1") == ()
    send(client, raw_report(2))
    assert len(victims.history.samples("1")) == 1, "the job's next report counts"


def test_that_hostile_content_takes_nothing_from_the_last_good_report(
    client: Connection, victims: Store
) -> None:
    send(client, raw_report(1))
    before = victims.jobs.get("1")
    for name, content in REFUSED.items():
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(2, **content))
        assert refused.value.sqlstate in (*BAD_REPORT, "PX001", "PX002"), name
    assert victims.jobs.get("1") == before


def test_that_a_number_written_as_a_text_is_that_number_and_bounded(
    client: Connection, victims: Store
) -> None:
    send(client, raw_report(1, throughput="17.5", sequence="3", gpus_per_node=["2"]))
    (sample,) = victims.history.samples("1")
    assert sample.throughput == 17.5
    with pytest.raises(psycopg.Error) as refused:
        send(client, raw_report(4, throughput="1e13"))
    assert refused.value.sqlstate in BAD_REPORT


def test_that_of_a_key_that_comes_twice_one_counts_and_is_checked(client: Connection, victims: Store) -> None:
    good = raw_report(1).removesuffix("}")
    with pytest.raises(psycopg.Error) as refused:
        send(client, good + ', "throughput": 5, "throughput": -5}')
    assert refused.value.sqlstate in BAD_REPORT
    send(client, good + ', "throughput": -5, "throughput": 5}')
    (sample,) = victims.history.samples("1")
    assert sample.throughput == 5.0


def test_that_deep_json_is_refused(client: Connection, victims: Store) -> None:
    deep = ("[" * 30_000 + "]" * 30_000, '{"a":' * 10_000 + "1" + "}" * 10_000)
    for name, value in itertools.product(("gpus_per_node", "throughput", "phase"), deep):
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(1, **{name: "HERE"}).replace('"HERE"', value))
        assert refused.value.sqlstate in BAD_REPORT, name
    assert victims.history.runs("1") == ()


def test_that_deep_json_where_nobody_looks_does_no_harm(client: Connection, victims: Store) -> None:
    send(client, raw_report(1, more="HERE").replace('"HERE"', "[" * 1000 + "]" * 1000))
    assert len(victims.history.samples("1")) == 1


def test_that_no_field_of_a_message_stands_for_what_the_database_finds(
    postgres_store: Store, client: Connection, victims: Store
) -> None:
    """A time in the past or future, another's job or run, or a word that lifts the limits."""
    set_clock(postgres_store.clock, at(9))  # type: ignore[attr-defined]
    names = ("at", "limited", "job_id", "run_id", "id", "first_report_at", "code")
    for sequence, value in enumerate(("1970-01-01", "9999-12-31", 2, False, None), start=1):
        forged = dict.fromkeys(names, value)
        send(client, raw_report(sequence, **forged))
        with pytest.raises(psycopg.Error, match="reports 3 nodes and was seen on 1"):
            send(client, raw_report(sequence + 1, gpus_per_node=[1, 1, 1], **forged))
    assert victims.jobs.get("2").run is None
    assert {sample.at for sample in victims.history.samples("1")} == {at(9)}


def test_that_epochs_beyond_the_total_are_the_jobs_own_claim(client: Connection, victims: Store) -> None:
    send(client, raw_report(1, epoch=10**9, total_epochs=1, progress=1e18))
    send(client, raw_report(2, epoch=0, total_epochs=0, progress=0.0))
    assert [one.total_epochs for one in victims.jobs.get("1").declarations] == [1, 0]
    assert victims.jobs.get("2").declarations == ()


def test_that_numbers_that_go_back_and_forth_are_taken_as_they_come(
    postgres_store: Store, client: Connection, victims: Store
) -> None:
    """Progress, epochs, steps and examples are the job's own claims; the order of reports is not."""
    for sequence, value in ((1, 10**9), (2, 0), (3, 10**9), (4, 1)):
        set_clock(postgres_store.clock, at(100 - sequence))  # type: ignore[attr-defined]
        send(
            client,
            raw_report(sequence, num_steps=value, num_examples=value, epoch=value, progress=float(value)),
        )
    samples = victims.history.samples("1")
    assert [sample.epoch for sample in samples] == [10**9, 0, 10**9, 1]
    assert [sample.at for sample in samples] == [at(99)] * 4, "a clock set back puts none before another"


def test_that_a_checkpoint_of_anothers_reallocation_confirms_nothing(
    client: Connection, victims: Store
) -> None:
    planned = plan(victims, 2)
    advance(victims, planned, (Step.CHECKPOINT_REQUESTED, 22))
    send(client, raw_report(1, request_id=planned.id, blocked_s=1e7, size_bytes=1))
    send(client, raw_report(2, request_id=-planned.id, blocked_s=0.0, size_bytes=1))
    send(client, raw_report(3, request_id=planned.id, blocked_s=None, size_bytes=None))
    assert [one.step for one in victims.journal.open_reallocations()] == [Step.CHECKPOINT_REQUESTED]


def test_that_warnings_are_compared_letter_by_letter(client: Connection, victims: Store) -> None:
    names = [
        "never_stepped\u200b",
        "NEVER_STEPPED",
        " never_stepped",
        "never_stepped\u001b[2J",
        *["x"] * 5000,
    ]
    send(client, raw_report(1, warnings=names))
    assert victims.jobs.get("1").warnings == ()


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.text(max_size=4), st.integers(-2, 2**70), st.floats(), st.just(10**400),
        st.sampled_from([5e-324, 1e-30, 1e-9, 1.0, 1e6, 1e12, 1e18, 1e30, "1e30", "-0", "\u200b1"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
CONTENT = st.dictionaries(st.sampled_from([*json.loads(raw_report(1))]), VALUES, min_size=1, max_size=4)


@given(content=CONTENT)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_that_any_content_is_refused_or_stored_finite_and_spares_the_neighbour(
    client: Connection, postgres_store: Store, content: dict[str, Any]
) -> None:
    number = len(postgres_store.jobs.all()) + 1
    postgres_store.jobs.register([registration(number)], at=at(0))
    postgres_store.jobs.observe([observation(number, gpus={"n0": 1})], at=at(0))
    before = postgres_store.jobs.get("2")
    try:
        send(client, raw_report(1, **content), token=token_of(number))
    except psycopg.Error as error:
        assert error.sqlstate in (*BAD_REPORT, "PX001", "PX002"), error  # noqa: PT017
        assert postgres_store.history.runs(str(number)) == ()
        return
    finally:
        assert postgres_store.jobs.get("2") == before
    job = postgres_store.jobs.get(str(number))
    assert all(math.isfinite(one) for one in numbers_in((job.model, job.sample, job.run)))
