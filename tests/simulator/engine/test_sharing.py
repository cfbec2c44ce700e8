"""Two jobs on the same GPUs: rates, GPU time, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator import Cluster, InPlace, NodeGroup, SimulatedJob, simulate, slurm_rules
from pollux_slurm.simulator.engine.cluster_rules import Rules
from pollux_slurm.simulator.engine.job import GpusByNode
from pollux_slurm.simulator.engine.sharing import Pair, PairRates, SharingPolicy
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from tests.simulator.rated import application_of, hours, one_gpu_cluster, run_rated

RATES = PairRates({("t4", "a", "b", 1): (0.5, 0.25), ("t4", "a", "a", 1): (0.8, 0.8)})
STEPS = {"a": {"t4": 2.0}, "b": {"t4": 4.0}}


class Scripted(SharingPolicy):
    """Gives every job GPU 0 of node 0, with these pairs while both jobs are there."""

    resizes = False

    def __init__(self, *pairs: Pair) -> None:
        super().__init__(RATES)
        self._given = pairs

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        names = {job.job.name for job in jobs}
        self.pairs = tuple(pair for pair in self._given if {pair.first, pair.second} <= names)
        return dict.fromkeys(names, ((0, 1),))


def test_that_a_pair_has_its_measured_rates_until_the_round_in_which_one_is_gone() -> None:
    """Both begin at 360 s. a trains an hour at half its rate, b the rest of its own alone.

    a needs 7200 s and ends at 7560 s, a round's end. By then b has trained 1800 s of 3600 s.
    """
    pair = Pair(first="a", second="b")
    done = run_rated(Scripted(pair), one_gpu_cluster("t4"), STEPS, hours("a", 1), hours("b", 1))
    ends = {job.job.name: job.finished_s for job in done.jobs}
    assert ends == {"a": pytest.approx(7560), "b": pytest.approx(7560 + 1800)}
    used = {job.job.name: job.gpu_seconds for job in done.jobs}
    assert used["a"] == pytest.approx(7200 / 2), "a GPU's time is counted once"
    assert used["b"] == pytest.approx(7200 / 2 + 1800)
    assert [record.gpus_used for record in done.rounds[:2]] == [1, 1]


def test_that_the_second_runs_in_its_part_of_the_time() -> None:
    """In a tenth of it: a has 0.9 + 0.1·0.5 of its rate, b 0.1·0.25 of its own."""
    pair = Pair(first="a", second="b", part=0.1)
    done = run_rated(Scripted(pair), one_gpu_cluster("t4", interval_s=1), STEPS, hours("a", 1), hours("b", 1))
    a_s, b_s = (job.finished_s or 0.0 for job in done.jobs)
    assert a_s - 1 == pytest.approx(3600 / 0.95, abs=0.5), "whole seconds"
    together_s = round(a_s + 0.5) - 1
    assert b_s - 1 - together_s == pytest.approx(3600 - 0.025 * together_s, abs=1)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((Pair(first="b", second="c"),), "b and c cannot share 1 GPUs of t4: too little memory, or never"),
        ((Pair(first="a", second="b"), Pair(first="a", second="c")), "a and c share, but not the same GPUs"),
        ((), "node 0 was given away 3 times over 1 GPUs"),
    ],
)
def test_that_impossible_pairs_are_refused(pairs: tuple[Pair, ...], message: str) -> None:
    jobs = (hours("a", 1), hours("b", 1), hours("c", 1, "b"))
    with pytest.raises(SimulationError, match=message):
        run_rated(Scripted(*pairs), one_gpu_cluster("t4"), STEPS, *jobs)


def test_that_a_pair_is_of_two_jobs_and_a_part_of_the_time() -> None:
    for first, second, part in (("a", "a", 1.0), ("a", "b", 1.5), ("a", "b", float("nan"))):
        with pytest.raises(SimulationError, match="no pair"):
            Pair(first=first, second=second, part=part)


def test_that_rates_are_the_same_from_either_side() -> None:
    assert RATES.of("t4", "a", "b", 1) == (0.5, 0.25)
    assert RATES.of("t4", "b", "a", 1) == (0.25, 0.5)
    assert RATES.of("t4", "a", "b", 2) is RATES.of("k80", "a", "b", 1) is None


@pytest.mark.parametrize("rules", [slurm_rules(), Rules(in_place=InPlace()), Rules(interference=0.1)])
def test_that_other_rules_are_refused(rules: Rules) -> None:
    with pytest.raises(SimulationError, match="GPUs are shared under rules osdi21 only"):
        simulate(
            (hours("a", 1),),
            {"a": application_of("a", STEPS["a"])},
            Scripted(),
            Cluster(groups=(NodeGroup(num_nodes=1, gpus_per_node=1),)),
            rules=rules,
        )
