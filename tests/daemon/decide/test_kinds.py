"""Which earlier jobs teach a job, and what its owner is told of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.daemon.decide import problem_building
from pollux_slurm.daemon.decide.kinds import Kinds, fitting_atomic
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    Configuration,
    GoodputModel,
    GradientStatistics,
    JobState,
    TrainingCourse,
)
from pollux_slurm.policy import decide
from pollux_slurm.store.contract.interface import NEWEST_OF_A_KIND, EarlierJob, RecentRun
from tests.daemon.builders import MODEL, NOON, TERMS, job, node, record, sample, snapshot
from tests.daemon.harness import Harness

EARLY = GradientStatistics(sqr=1.0, var=2.0)
LARGE = dataclasses.replace(MODEL, max_gpus_seen=8, max_nodes_seen=2)
OF_A_KIND = dataclasses.replace(TERMS, kind="gpt2")
LIE = RecentRun(1e-6, ((Configuration(num_nodes=1, num_gpus=4), 900.0),))
ONE = dataclasses.replace(MODEL, max_gpus_seen=1)


def earlier(slurm_job_id: str = "7", model: GoodputModel = LARGE, **changes: Any) -> EarlierJob:
    fields: dict[str, Any] = {
        "user_id": TERMS.user_id,
        "account": "physics",
        "kind": "gpt2",
        "name": "train",
        "state": JobState.COMPLETED,
        "models": (),
        "early_statistics": EARLY,
        "progress": 100.0,
        "recent_runs": (),
        "mean_restart_delay_s": None,
        "mean_standstill_s": None,
        "mean_warm_up_s": None,
    }
    return EarlierJob(slurm_job_id=slurm_job_id, model=model, **(fields | changes))


@pytest.mark.parametrize(
    ("others", "shared_by", "teaches"),
    [
        ([earlier()], "user", True),
        ([earlier(account="other")], "user", True),
        ([earlier(user_id=7)], "user", False),
        ([earlier(user_id=7)], "account", True),
        ([earlier(account="other")], "account", False),
        ([earlier()], "nobody", False),
        ([earlier(kind="bert")], "user", False),
        ([earlier("1")], "user", False),
        ([earlier(recent_runs=(LIE,))], "user", False),
    ],
    ids=["same", "account", "user", "by account", "not by account", "off", "other kind", "itself", "a lie"],
)
def test_that_only_true_jobs_of_the_same_kind_and_owner_teach(
    others: list[EarlierJob], shared_by: str, teaches: bool
) -> None:
    taught = Kinds(others, shared_by=shared_by).teach(record("1", terms=OF_A_KIND, model=ONE), (ONE, ()))
    assert (taught.note is not None) is teaches
    model = taught.models[0]
    assert model is not None
    assert model.max_gpus_seen == (8 if teaches else 1)


def test_that_a_job_without_a_kind_learns_nothing() -> None:
    assert Kinds([earlier()]).teach(record("1"), (None, ())).models == (None, ())


def test_that_the_job_that_has_seen_most_teaches_with_the_noise_of_its_beginning() -> None:
    kinds = Kinds([earlier("9", ONE), earlier("8"), earlier("7")])
    taught = kinds.teach(record("1", terms=OF_A_KIND), (None, ()))
    assert taught.models == (dataclasses.replace(LARGE, statistics=EARLY), ())
    assert taught.note == (
        "from 3 earlier jobs of its kind by ann; job 8 (train) ran on up to 8 GPUs; "
        "3 completed, and tell how long it will be"
    )


def test_that_the_note_names_the_account_whose_jobs_teach() -> None:
    known = record("1", terms=OF_A_KIND, account="physics")
    taught = Kinds([earlier(user_id=7)], shared_by="account").teach(known, (None, ()))
    assert (taught.note or "").startswith("from 1 earlier job of its kind in account physics; job 7 ")


def test_that_models_by_gpu_type_are_taught_by_type() -> None:
    own = (None, (("t4", ONE),))
    taught = Kinds([earlier(models=(("t4", LARGE), ("a100", LARGE)))]).teach(
        record("1", terms=OF_A_KIND), own
    )
    seen = {kind: model.max_gpus_seen for kind, model in taught.models[1]}
    assert seen == {"t4": 8, "a100": 8}


def test_that_a_kind_that_does_not_fit_is_named() -> None:
    assert MODEL.throughput is not None
    theta = dataclasses.replace(MODEL.throughput, alpha_g=0.2, beta_g=0.01)
    slow = dataclasses.replace(ONE, throughput=theta)
    taught = Kinds([earlier()]).teach(record("1", terms=OF_A_KIND), (slow, ()))
    assert taught.models == (slow, ())
    assert "differ by more than 30 % from those of job 7" in (taught.note or "")


def test_that_a_waiting_job_of_a_known_kind_begins_with_what_its_kind_can_use() -> None:
    waiting = job("1", JobState.PENDING)
    seen = cluster_picture.build_picture(
        snapshot([node("n0"), node("n1")], [waiting]), [record("1", terms=OF_A_KIND, model=None)]
    )
    sizes = []
    for kinds in (Kinds(), Kinds([earlier()])):
        problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, kinds=kinds)
        decision = decide(problem)
        sizes.append(decision.jobs[0].allocation.num_gpus)
        assert decision.jobs[0].allocation != Allocation()
    assert sizes[0] == 1
    assert sizes[1] > 1


def test_that_only_completed_jobs_tell_how_long_a_job_will_be() -> None:
    examples = MODEL.limits.initial_batch_size
    kinds = Kinds(
        [earlier("9", progress=300.0), earlier("8"), earlier("7", progress=900.0, state=JobState.RUNNING)]
    )
    seen = cluster_picture.build_picture(
        snapshot([node("n0")], [job("1", JobState.PENDING)]), [record("1", terms=OF_A_KIND, model=ONE)]
    )
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, kinds=kinds)
    (one,) = problem.jobs
    assert (one.expected_low, one.expected_progress, one.expected_high) == (
        100.0 * examples,
        100.0 * examples,
        300.0 * examples,
    )
    assert kinds.teach(record("1", terms=OF_A_KIND), (LARGE, ())).note == (
        "from 3 earlier jobs of its kind by ann; 2 completed, and tell how long it will be"
    )


def test_that_of_a_kind_only_jobs_that_agree_with_what_a_job_measured_teach_it() -> None:
    assert MODEL.throughput is not None
    theta = dataclasses.replace(MODEL.throughput, alpha_g=0.2, beta_g=0.01)
    other = dataclasses.replace(LARGE, throughput=theta, max_gpus_seen=64)
    kinds = Kinds([earlier("9", other, progress=9000.0), earlier("8"), earlier("7", progress=300.0)])
    taught = kinds.teach(record("1", terms=OF_A_KIND), (ONE, ()))
    model = taught.models[0]
    assert model is not None
    assert model.max_gpus_seen == 8
    examples = MODEL.limits.initial_batch_size
    assert sorted(taught.lengths) == [100.0 * examples, 300.0 * examples]
    assert (taught.note or "").startswith("from 2 earlier jobs of its kind by ann; job 8 ")


@pytest.mark.parametrize(
    ("state", "progress", "lengths"),
    [
        (JobState.CANCELLED, 99.0, [100.0, 300.0]),
        (JobState.FAILED, 109.0, [100.0, 300.0]),
        (JobState.CANCELLED, 111.0, [300.0]),
        (JobState.FAILED, 200.0, [300.0]),
        (JobState.TIMEOUT, 400.0, []),
        (JobState.RUNNING, 400.0, [100.0, 300.0]),
    ],
)
def test_that_a_killed_job_refutes_the_lengths_that_it_has_passed(
    state: JobState, progress: float, lengths: list[float]
) -> None:
    kinds = Kinds(
        [earlier("9", state=state, progress=progress), earlier("8"), earlier("7", progress=300.0)],
        course_of=lambda teacher: TrainingCourse(work=teacher.progress, statistics=()),
    )
    terms = dataclasses.replace(OF_A_KIND, finish_by=NOON)
    taught = kinds.teach(record("1", terms=terms), (LARGE, ()))
    assert sorted(taught.lengths) == [length * MODEL.limits.initial_batch_size for length in lengths]
    assert (None if taught.course is None else taught.course.work) == max(lengths, default=None)


@pytest.mark.parametrize(
    ("own", "delays"),
    [
        ({}, (50.0, 21.0)),
        ({"mean_restart_delay_s": 70.0}, (70.0, 21.0)),
        ({"mean_warm_up_s": 5.0, "mean_standstill_s": 0.5}, (50.0, 5.5)),
        ({"mean_warm_up_s": 90.0}, (91.0, 91.0)),
        ({"terms": dataclasses.replace(TERMS, kind="bert", in_place=True)}, (30.0, 15.0)),
    ],
    ids=["none", "restart", "in place", "slow", "other kind"],
)
def test_that_moves_cost_what_they_cost_others_of_the_kind_until_the_job_has_measured_it(
    own: dict[str, Any], delays: tuple[float, float]
) -> None:
    others = [
        earlier(str(50 + n), mean_restart_delay_s=restart_s, mean_warm_up_s=warm_up_s, mean_standstill_s=1.0)
        for n, (restart_s, warm_up_s) in enumerate([(40.0, 10.0), (50.0, 20.0), (900.0, 900.0), (None, None)])
    ]
    terms = dataclasses.replace(OF_A_KIND, in_place=True)
    known = record("1", **({"terms": terms} | own))
    seen = cluster_picture.build_picture(snapshot([node("n0", used=1)], [job("1", on={"n0": 1})]), [known])
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, kinds=Kinds(others))
    (one,) = problem.jobs
    assert (one.restart_delay_s, one.in_place_delay_s) == delays


def without_memory(largest: int, **changes: Any) -> GoodputModel:
    limits = dataclasses.replace(MODEL.limits, max_atomic=largest, failed_atomic=2 * largest)
    return dataclasses.replace(LARGE, limits=limits, **changes)


def test_that_a_job_is_told_of_the_micro_batches_for_which_its_kind_had_no_memory() -> None:
    assert MODEL.limits.max_atomic == 256
    others = [earlier(str(7 + number), without_memory(largest)) for number, largest in enumerate((64, 48, 2))]
    taught = Kinds([*others, earlier("6")]).teach(record("1", terms=OF_A_KIND, model=LARGE), (LARGE, ()))
    model = taught.models[0]
    assert model is not None
    # The median: the job that says 2 moves it little.
    assert model.limits == dataclasses.replace(LARGE.limits, max_atomic=48, accumulation=True)
    assert (taught.note or "").endswith("; 48 examples at once fit into memory, 96 did not")
    # A user's own bound of 64 is no lack of memory.
    own = dataclasses.replace(LARGE, limits=dataclasses.replace(LARGE.limits, max_atomic=64))
    assert Kinds([earlier("7", own)]).teach(record("1", terms=OF_A_KIND), (LARGE, ())).models == (LARGE, ())


@pytest.mark.parametrize(("trains_with", "largest"), [(48, 48), (49, 256), (None, 48)])
def test_that_a_job_that_trains_with_more_goes_by_its_own(trains_with: int | None, largest: int) -> None:
    batch = None
    if trains_with is not None:
        batch = BatchChoice(global_batch_size=64, atomic_batch_size=trains_with, accumulation_steps=0)
    known = record("1", terms=OF_A_KIND, model=LARGE, sample=sample(batch=batch))
    taught = Kinds([earlier("7", without_memory(48))]).teach(known, (LARGE, ()))
    assert taught.models[0] is not None
    assert taught.models[0].limits.max_atomic == largest
    assert ("48 examples at once" in (taught.note or "")) is (largest == 48)


def test_that_memory_is_that_of_the_gpu_type() -> None:
    teacher = earlier(models=(("t4", without_memory(32)), ("a100", LARGE)))
    own = (None, (("t4", LARGE), ("a100", LARGE)))
    taught = Kinds([teacher]).teach(record("1", terms=OF_A_KIND), own)
    most = {gpu_type: model.limits.max_atomic for gpu_type, model in taught.models[1]}
    assert most == {"t4": 32, "a100": 256}
    assert (taught.note or "").endswith("; 32 examples at once fit into the memory of a t4, 64 did not")
    known = record("1", terms=OF_A_KIND, model=LARGE)
    seen = cluster_picture.build_picture(snapshot([node("n0")], [job("1", JobState.PENDING)]), [known])
    kinds = Kinds([teacher])
    problem = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, kinds=kinds)
    asked = dataclasses.replace(problem.jobs[0], model=None, models=taught.models[1])
    assert fitting_atomic(known, asked, {"t4"}) == 32
    assert fitting_atomic(known, asked, {"a100"}) is None
    assert fitting_atomic(known, asked, set()) == 32
    small = dataclasses.replace(LARGE, limits=dataclasses.replace(LARGE.limits, max_atomic=16))
    assert fitting_atomic(dataclasses.replace(known, model=small), asked, {"t4"}) is None


@pytest.mark.parametrize(
    ("own", "teaches"),
    [
        ({}, True),
        ({"num_parameters": 12}, True),
        ({"num_parameters": 48}, False),
        ({"precision": "bfloat16"}, False),
        ({"num_parameters": 12, "precision": "float32"}, True),
    ],
)
def test_that_a_kind_trains_the_same_network_in_the_same_precision(
    own: dict[str, Any], teaches: bool
) -> None:
    teacher = earlier(model=dataclasses.replace(LARGE, num_parameters=12, precision="float32"))
    for throughput in (MODEL.throughput, None):
        model = dataclasses.replace(ONE, throughput=throughput, **own)
        taught = Kinds([teacher]).teach(record("1", terms=OF_A_KIND), (model, ()))
        assert ((taught.note or "").startswith("from 1 earlier job")) is teaches
        assert teaches or "not as many parameters, or not the precision, of job 7" in (taught.note or "")


def test_that_the_daemon_tells_a_job_what_did_not_fit_for_another_of_its_kind(harness: Harness) -> None:
    daemon = harness.daemon()
    one, other = (harness.submit(gpus=1, kind="gpt2") for _ in range(2))

    def fitting() -> dict[str, int | None]:
        return {job.slurm_job_id: job.fitting_atomic for job in harness.store.jobs.all() if job.model}

    harness.run_until(daemon, until=lambda: len(fitting()) == 2)
    assert fitting() == {one: None, other: None}
    harness.agents[one].model = without_memory(32)
    harness.run_until(daemon, until=lambda: fitting()[other] is not None)
    assert fitting() == {one: None, other: 32}
    harness.run_until(daemon, until=lambda: harness.agents[other].fitting_atomic is not None)
    assert harness.agents[other].fitting_atomic == 32


def test_that_only_the_newest_of_a_kind_teach_sizes_and_older_ones_lengths() -> None:
    large = dataclasses.replace(LARGE, max_gpus_seen=64)
    older = earlier("1", large, progress=500.0)
    training = [earlier(str(99 - number), state=JobState.RUNNING) for number in range(NEWEST_OF_A_KIND)]
    for newer, seen in ((training[1:], 64), (training, 8)):
        taught = Kinds([*newer, older]).teach(record("100", terms=OF_A_KIND), (ONE, ()))
        model = taught.models[0]
        assert model is not None
        assert model.max_gpus_seen == seen
        assert taught.lengths == (500.0 * MODEL.limits.initial_batch_size,)
