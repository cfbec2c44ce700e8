"""The common options of `pollux simulate` and `pollux simulate sweep`."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared.completion import choices, setting_choices
from pollux_slurm.cli.shared.duration_options import seconds

if TYPE_CHECKING:
    from pollux_slurm.simulator.engine.cluster_rules import InPlace
    from pollux_slurm.simulator.experiments.settings import RunSettings, ScalingSettings
    from pollux_slurm.simulator.site.measured_jobs import MeasuredDelays

PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="pollux, genetic, sia, tiresias, optimus, slurm, or one of the field's other policies: "
        "gavel-las, themis, shockwave and more; repeatable.",
        show_default="pollux",
        autocompletion=choices(
            "pollux",
            "genetic",
            "sia",
            "tiresias",
            "optimus",
            "slurm",
            "gavel-las",
            "gavel-las-agnostic",
            "gavel-ftf",
            "gavel-ftf-agnostic",
            "gavel-makespan",
            "gavel-makespan-agnostic",
            "gavel-sum",
            "gavel-sum-agnostic",
            "themis",
            "elasticflow",
            "edf",
            "slaq",
            "shockwave",
        ),
    ),
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What pollux maximises: generalized-mean, osdi21, price-rank, attained-work "
        "or your own; repeatable.",
        show_default="generalized-mean",
        autocompletion=setting_choices("policy", "objective"),
    ),
]
BetweenOption = Annotated[
    str,
    typer.Option(
        help="Who has equal shares under pollux: users, accounts or jobs, as workloads name them.",
        autocompletion=setting_choices("policy", "between"),
    ),
]
HalfLifeOption = Annotated[
    float | None,
    typer.Option(
        parser=seconds(least=1.0),
        metavar="TIME",
        help="Half-life of used GPUs in the shares of users under pollux, such as 7d; default: none count.",
    ),
]
DeclaredOption = Annotated[bool, typer.Option("--declared", help="Jobs declare how many epochs they train.")]
KindsOption = Annotated[
    bool,
    typer.Option(
        "--kinds", help="Jobs of one application tell each other what they measured; nothing at first."
    ),
]
RulesOption = Annotated[
    str,
    typer.Option(
        help="Rules of the simulated cluster: osdi21, as in the paper's artifact; slurm, as in Slurm.",
        autocompletion=choices("osdi21", "slurm"),
    ),
]
NodesOption = Annotated[int, typer.Option(min=1, help="Number of nodes.")]
GpusOption = Annotated[int, typer.Option(min=1, help="GPUs of each node.")]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node-group",
        metavar="NODESxGPUS:TYPE[=SPEED][,APPLICATION=SPEED]",
        help="Instead of --nodes, such as 8x4:t4 and 4x8:a100=2.5,bert=3; repeatable. Speeds are relative to "
        "placements.csv; placements-TYPE.csv counts instead, where traces have it.",
    ),
]
PlainRequeueOption = Annotated[
    bool,
    typer.Option("--plain-requeue", help="Moves wait 121 s, as a job does after a plain requeue by Slurm."),
]
UnmanagedOption = Annotated[
    float, typer.Option(help="Share of the GPUs that unmanaged jobs use on average, in the first day.")
]
MtbfOption = Annotated[
    float | None, typer.Option(help="Mean hours between failures of a node; default: none fails.")
]
InterferenceOption = Annotated[
    float, typer.Option(help="Share of its speed that a job on several nodes loses beside another such job.")
]
NoiseOption = Annotated[
    float,
    typer.Option(help="Noise of measured step times: standard deviation of their logarithm, such as 0.1."),
]
OutliersOption = Annotated[
    float, typer.Option(help="Share of the minutes in which agents measure ten times the true step time.")
]
DelaysOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="Delays that pollux simulate export measured (rules slurm), instead of those of --traces.",
    ),
]
SeveralWingsOption = Annotated[
    bool,
    typer.Option(
        "--several-wings",
        help="In place, a job may have several wings on a node, instead of one: more moves can be made in "
        "place.",
    ),
]
WarmUpOption = Annotated[
    float,
    typer.Option(
        parser=seconds(),
        metavar="TIME",
        help="Time for which the new GPUs of a move in place wait for their processes: seconds or 20s. Rules "
        "slurm: that of --delays, or else their start and launch.",
    ),
]
StandstillOption = Annotated[
    float,
    typer.Option(
        parser=seconds(),
        metavar="TIME",
        help="Time without progress of a move in place, beside 2.3 s for each GB of state: seconds or 2s. "
        "One that --delays has measured counts instead of both.",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--rules-seed",
        help="Seed for adaptive jobs, jobs moved in place, failures, unmanaged jobs and noise.",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Simulations to run at the same time.")]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write one page with plots, for any browser.")
]


def use_one_thread(environ: MutableMapping[str, str]) -> None:
    """Limit numpy to one thread, unless the user has set OMP_NUM_THREADS. Call it before numpy is imported.

    A simulation's matrices are tiny: two threads use more CPU for no gain (measured on two cores: 3.9 s for a
    run of 1.5 s), and concurrent simulations compete for the cores.
    """
    if "OMP_NUM_THREADS" not in environ:
        environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def options_given(context: typer.Context) -> list[str]:
    """Return the long names of the options on the command line."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(context.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
    ]


def refuse_unused(context: typer.Context, options: Sequence[str], why: str, *, where: bool = True) -> None:
    """Raise `UsageError` for the first of `options` on the command line, if `where` is true."""
    from pollux_slurm.errors import UsageError

    unused = [option for option in options_given(context) if where and option in options]
    if unused:
        raise UsageError(f"{unused[0]} would do nothing: {why}")


def refuse_unused_settings(
    context: typer.Context,
    *,
    rules: str,
    groups: Sequence[str] | None,
    policies: Sequence[str] | None,
    noise: tuple[float, float],
    in_place_shares: Sequence[float],
) -> None:
    """Raise `UsageError` for options without effect under these rules, node groups or policies."""
    why = "rules osdi21 use no random numbers (see --rules slurm and --measurement-noise)"
    drawn = any(noise) or any(0 < share < 1 for share in in_place_shares)
    refuse_unused(context, ("--rules-seed",), why, where=rules == "osdi21" and not drawn)
    in_place = ("--in-place", "--in-place-share", "--several-wings", "--warm-up", "--standstill")
    refuse_unused(context, in_place, "policy slurm moves no job", where=set(policies or ()) == {"slurm"})
    where = not any(in_place_shares)
    refuse_unused(context, in_place[2:], "it is of moves in place (see --in-place-share)", where=where)
    why = "rules slurm have the start and launch of their delays"
    refuse_unused(context, ("--warm-up",), why, where=rules == "slurm")
    why = "--node-group sets all nodes"
    refuse_unused(context, ("--nodes", "--gpus-per-node"), why, where=bool(groups))
    shares = ("--between", "--share-half-life")
    refuse_unused(context, shares[1:], "jobs have no memory", where=context.params.get("between") == "jobs")
    others = bool(policies) and "pollux" not in (policies or ())
    # The genetic policy has one objective, which may be named.
    named = set(context.params.get("objective") or ()) == {"osdi21"} and "genetic" in (policies or ())
    refuse_unused(context, ("--objective",), "it is of --policy pollux", where=others and not named)
    refuse_unused(context, ("--declared", "--kinds", *shares), "it is of --policy pollux", where=others)


def find_delays(rules: str, traces: Path, delays: Path | None) -> MeasuredDelays | None:
    """Return the delays in the file `delays`, or those of the measured jobs. Raises `TraceError`."""
    from pollux_slurm.errors import UsageError
    from pollux_slurm.simulator.site.measured_jobs import read_queue

    if rules != "slurm":
        if delays is not None:
            raise UsageError(f"--delays are of rules slurm, not {rules}")
        return None
    source = delays if delays is not None else traces
    if not source.is_file() and delays is None:
        return None
    found = read_queue(source).delays
    if found is None and delays is not None:
        raise UsageError(f"{delays}: it contains no delays: none of its jobs ever started")
    return found


def find_in_place(
    share: float, *, several_wings: bool, warm_up_s: float, standstill_s: float
) -> InPlace | None:
    """Return the rules of moves in place, None where no job can be moved so. Raises `UsageError`."""
    from pollux_slurm.errors import SimulationError, UsageError
    from pollux_slurm.simulator.engine.cluster_rules import InPlace

    try:
        found = InPlace(
            share=share, several_wings=several_wings, warm_up_s=warm_up_s, standstill_s=standstill_s
        )
    except SimulationError as error:
        raise UsageError(str(error)) from None
    return found if share else None


def make_settings(
    *,
    policies: Sequence[str] | None,
    objectives: Sequence[str] | None,
    declared: bool,
    kinds: bool = False,
    between: str = "users",
    share_half_life_s: float | None = None,
    rules: str,
    num_nodes: int,
    gpus_per_node: int,
    groups: Sequence[str] | None,
    interval_s: float = 60.0,
    restart_delay_s: float = 30.0,
    adaptive_share: float = 1.0,
    plain_requeue: bool,
    unmanaged_share: float,
    mtbf_hours: float | None,
    interference: float,
    noise: tuple[float, float],
    in_place: InPlace | None = None,
    scaling: ScalingSettings | None = None,
    delays: MeasuredDelays | None = None,
    seed: int,
) -> tuple[RunSettings, ...]:
    """Return the settings of each policy, `pollux` with each objective. Raises `UsageError`."""
    from pollux_slurm.errors import SimulationError, UsageError
    from pollux_slurm.simulator.engine.cluster_rules import PLAIN_REQUEUE_S
    from pollux_slurm.simulator.engine.measurement_noise import MeasurementNoise
    from pollux_slurm.simulator.experiments.settings import RunSettings, SlurmSettings, parse_group

    spread, outliers = noise
    try:
        measured_with = MeasurementNoise(spread=spread, outliers=outliers)
    except SimulationError as error:
        raise UsageError(str(error)) from None
    return tuple(
        RunSettings(
            policy=name,
            objective=objective,
            between=between,
            share_half_life_s=share_half_life_s,
            declared=declared,
            kinds=kinds,
            rules=rules,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
            groups=tuple(parse_group(group) for group in groups or ()),
            interval_s=interval_s,
            restart_delay_s=restart_delay_s,
            interference=interference,
            noise=measured_with,
            in_place=in_place,
            slurm=SlurmSettings(
                adaptive_share=adaptive_share,
                requeue_s=PLAIN_REQUEUE_S if plain_requeue else None,
                unmanaged_share=unmanaged_share,
                mtbf_s=None if mtbf_hours is None else mtbf_hours * 3600,
                delays=delays,
            ),
            scaling=scaling,
            seed=seed,
        )
        for name in dict.fromkeys(policies or ["pollux"])
        for objective in list(dict.fromkeys(objectives or ["generalized-mean"]))[
            : None if name == "pollux" else 1
        ]
    )
