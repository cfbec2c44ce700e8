"""`pollux simulate` as a user types it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pollux_slurm.cli import main
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.text import number_text
from tests.published import traces_dir
from tests.simulator.builders import write_traces
from tests.simulator.site.test_export import trained
from tests.waiting import wait_until


def pollux(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pollux_slurm", *words], capture_output=True, text=True, timeout=300
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]
Refused = Callable[[Sequence[str], str], None]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process: a start of Python costs more than most commands."""

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["pollux", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(returncode=ended.value.code, stdout=done.out, stderr=done.err)

    return run


@pytest.fixture
def refused(here: Command) -> Refused:
    """Check that a command prints nothing but one line with a message, and exits with 2."""

    def check(words: Sequence[str], message: str) -> None:
        done = here(*words)
        assert done.returncode == 2, done.stderr
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
        assert message in done.stderr

    return check


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[str, ...]:
    write_traces(tmp_path / "traces" / "made")
    workload = tmp_path / "small.csv"
    workload.write_text("name,time,application,num_replicas,batch_size\na,5,made,1,8\nb,9,made,2,8\n")
    return ("simulate", "--traces", str(tmp_path / "traces"), "--workload", str(workload))


def experiment(folder: Path, text: str) -> str:
    """Write an experiment without traces and workload, which options name."""
    file = folder / "experiment.toml"
    file.write_text(text)
    return str(file)


def test_that_json_has_all_that_analysts_need(inputs: tuple[str, ...]) -> None:
    done = pollux(*inputs, "--policy", "tiresias", "--json", "--nodes", "1x4")
    found = json.loads(done.stdout)
    assert (found["policy"], found["workload"]) == ("tiresias", "small")
    assert found["jobs"]["a"] == 240 - 5
    assert found["makespan_s"] == 235
    assert found["avg_jct_s"] == pytest.approx(sum(found["jobs"].values()) / 2)
    assert set(found["solve_s"]) == {"p50", "p95", "max"}


def test_that_several_policies_are_in_one_table(inputs: tuple[str, ...]) -> None:
    done = pollux(*inputs, "--policy", "tiresias", "--policy", "optimus", "--policy", "pollux")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if "small" in row[1:2]] == [
        "tiresias",
        "optimus",
        "generalized-mean",
    ]


def test_that_parallel_runs_have_the_same_results(inputs: tuple[str, ...]) -> None:
    options = ("--policy", "tiresias", "--policy", "optimus", "--json")
    alone, shared = (json.loads(pollux(*inputs, *options, "--jobs", jobs).stdout) for jobs in ("1", "2"))
    for run in (*alone, *shared):
        del run["wall_s"], run["solve_s"]
    assert alone == shared
    assert [run["policy"] for run in alone] == ["tiresias", "optimus"]


def test_that_results_are_written_for_spreadsheets(
    inputs: tuple[str, ...], tmp_path: Path, here: Command
) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    done = here(*inputs, "--policy", "tiresias", "--output", str(out), "--report", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = json.loads((out / "summary.json").read_text())["runs"]
    with (out / "jobs.csv").open() as stream:
        jobs = list(csv.DictReader(stream))
    assert {job["name"]: float(job["completion_s"]) for job in jobs} == run["jobs"]
    with (out / "rounds.csv").open() as stream:
        assert max(int(record["gpus_used"]) for record in csv.DictReader(stream)) == 3
    for name in ("runs.csv", "table.csv"):
        with (out / name).open() as stream:
            assert [float(row["avg_jct_s"]) for row in csv.DictReader(stream)] == [run["avg_jct_s"]]
    again = here("simulate", str(out))
    assert again.stdout == done.stdout, "results open again"
    assert "<svg" in page.read_text()


def test_that_node_hours_follow_the_size_of_the_cluster(
    inputs: tuple[str, ...], tmp_path: Path, here: Command
) -> None:
    """One node at least and two at most, for the 5 s to 235 s and more that the jobs take."""
    page = tmp_path / "page.html"
    file = experiment(tmp_path, 'nodes = "2x4"\n[autoscale]\nlow = 0.55\nhigh = 0.75')
    done = here(*inputs[:1], file, *inputs[1:], "--report", str(page))
    assert done.returncode == 0, done.stderr
    above, head, row = (line.split() for line in done.stdout.splitlines()[:3])
    assert ("node" in above, head.count("hours"), row[0]) == (True, 2, "generalized-mean")
    assert "0.55 to 0.75, from 1 node" in page.read_text()


def test_that_regroups_are_counted_apart_from_restarts(
    inputs: tuple[str, ...], tmp_path: Path, here: Command
) -> None:
    page = tmp_path / "page.html"
    text = "in_place = 1\nseveral_wings = true\nwarm_up_s = 10\nstandstill_s = 2"
    words = (*inputs[:1], experiment(tmp_path, text), *inputs[1:], "--nodes", "2x4")
    found = [
        json.loads(here(*inputs, "--nodes", "2x4", "--json").stdout),
        json.loads(here(*words, "--json").stdout),
    ]
    assert found[0]["restarts_per_job"] > found[1]["restarts_per_job"]
    assert [one["regroups_per_job"] > 0 for one in found] == [False, True]
    done = here(*words, "--report", str(page))
    head, row = (line.split() for line in done.stdout.splitlines()[1:3])
    at = head.index("regroups") - len(head)
    assert (head[at - 1], head[at + 1]) == ("restarts", "lost")
    counts = [number_text(found[1][what]) for what in ("restarts_per_job", "regroups_per_job")]
    assert "  ".join(counts) in "  ".join(row)
    assert "standstill_s" in page.read_text()


def test_that_a_bound_stands_beside_each_run(inputs: tuple[str, ...], here: Command) -> None:
    options = ("--policy", "tiresias", "--policy", "pollux", "--bound", "--nodes", "1x4")
    runs = json.loads(here(*inputs, *options, "--json").stdout)
    assert runs[0]["bound_avg_jct_s"] == runs[1]["bound_avg_jct_s"]
    for run in runs:
        assert 0.5 * run["avg_jct_s"] < run["bound_avg_jct_s"] < run["avg_jct_s"]
    shown = here(*inputs, *options).stdout.splitlines()
    head, row = shown[1].split(), shown[2].split()
    assert head[4:6] == ["bound", "bound"]
    assert row[4] == f"{runs[0]['bound_avg_jct_s']:,.0f}"
    assert row[5].startswith("−")


def test_that_a_bound_that_does_not_hold_is_refused(inputs: tuple[str, ...], refused: Refused) -> None:
    refused([*inputs, "--bound", "--rules", "slurm"], "--bound: the bound is of rules osdi21 and moves by")


def test_that_a_terminal_shows_the_progress(inputs: tuple[str, ...]) -> None:
    """A progress bar on stderr, which is cleared at the end, and only the table on stdout."""
    master, terminal = pty.openpty()
    words = [sys.executable, "-m", "pollux_slurm", *inputs, "--policy", "tiresias", "--json"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    ) as run:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # Linux raises this when the terminal is closed
            while part := os.read(master, 4096):
                shown += part
        out, _ = run.communicate(timeout=300)
    os.close(master)
    assert b"1 simulations" in shown
    assert b"100 %" in shown
    assert b"2 of 2 jobs ended" in shown
    assert json.loads(out)["policy"] == "tiresias"


def test_that_a_simulation_takes_one_core(inputs: tuple[str, ...]) -> None:
    """numpy uses one thread in the process that simulates."""
    code = (
        "import sys, contextlib; from pollux_slurm.cli import main; sys.argv = sys.argv[1:]\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "from threadpoolctl import threadpool_info\n"
        "print([pool['num_threads'] for pool in threadpool_info()])"
    )
    words = [sys.executable, "-c", code, "pollux", *inputs, "--policy", "tiresias"]
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=free)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) == {1}


def test_that_a_workload_is_generated_and_read_again(tmp_path: Path, here: Command) -> None:
    file = tmp_path / "w.csv"
    done = here("simulate", "generate", "--load", "1.5", "--seed", "7", "--hours", "8", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert len(file.read_text().splitlines()) == 241
    shown = here("simulate", "generate", "--load", "1.5", "--seed", "7")
    assert shown.stdout == file.read_text()


def test_that_a_workload_has_the_requested_users(tmp_path: Path, here: Command) -> None:
    file = tmp_path / "w.csv"
    assert here("simulate", "generate", "--users", "3", "-o", str(file)).returncode == 0
    header, first = file.read_text(encoding="utf-8").splitlines()[:2]
    assert header.endswith(",account,user")
    assert first.rpartition(",")[2] in {"user0", "user1", "user2"}


def test_that_accounting_becomes_a_workload(tmp_path: Path) -> None:
    rows = "JobIDRaw|Submit|ElapsedRaw|AllocTRES\n5|1769846400|60|gres/gpu=1\n6|1769846400|60|cpu=1\n"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pollux_slurm",
            "simulate",
            "import-sacct",
            "-",
            "--traces",
            str(traces_dir()),
        ],
        input=rows,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("5,0,")
    assert done.stderr == "1 jobs with 0.0 GPU hours; left out: 1 without GPUs, 0 that have not ended\n"


def test_that_an_experiment_continues_where_it_was_stopped(
    inputs: tuple[str, ...], tmp_path: Path, here: Command
) -> None:
    out = tmp_path / "kept"
    words = (*inputs[1:], "--output", str(out), "--policy", "tiresias", "--json")
    first = here("simulate", experiment(tmp_path, "restart_delay_s = [0, 30]"), *words)
    assert first.returncode == 0, first.stderr
    files = {file: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    assert len(files) == 2
    second = here("simulate", experiment(tmp_path, "restart_delay_s = [0, 30, 60]"), *words)
    assert [run["place"]["restart_delay_s"] for run in json.loads(second.stdout)] == [0, 30, 60]
    assert {file: file.stat().st_mtime_ns for file in files} == files, "what was there was not run again"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "best"), "--policy: name: expected one of pollux, genetic"),
        (("--objective", "best"), "--policy: objective: expected one of"),
        (("--rules", "mine"), "--rules: rules: expected one of osdi21, slurm, not 'mine'"),
        (
            ("--policy", "sia", "--objective", "price-rank"),
            "--objective would do nothing: it is of --policy pollux",
        ),
        (("--nodes", "4:t4"), "--nodes: nodes are '4:t4'; expected nodes x GPUs such as 16x4"),
        (("--nodes", ""), "--nodes: nodes: expected a text, not ''"),
        (("--nodes", "4x4:t4=0"), "nodes are '4x4:t4=0': the speed of"),
        (("--jobs", "0"), "'-j': Input should be greater than or equal to 1"),
        (("--workload", "/nope.csv"), "/nope.csv: No such file"),
        (("--traces", "/nope"), "/nope: no such folder"),
        (("--report", "/nope/out.html"), "cannot write /nope/out.html: there is no folder /nope"),
        (("--report", "/"), "cannot write /: it is a folder"),
        (("--output", "/nope/out"), "cannot make folder /nope/out"),
        (("export",), "options come before export; options of a subcommand come after it"),
        (("none.toml",), "none.toml: no such experiment or folder of results"),
        (("/",), "/ is a folder of results: only --report and --json are of it"),
    ],
)
def test_that_an_error_is_one_line(
    inputs: tuple[str, ...], options: tuple[str, ...], message: str, refused: Refused
) -> None:
    refused((*inputs, *options), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "traces are needed: --traces DIR, or traces = ... in an experiment's file"),
        (("--traces", "busy.json"), "busy.json: no such folder"),
        (("--traces", "{traces}"), "a generated workload needs traces of application 'cifar10'"),
        (("{traces}",), "contains no results"),
        (("generate", "--load", "-1"), "load of a workload must be above 0, not -1"),
        (("generate", "--hours", "0"), "length in hours"),
        (("generate", "--output", "/nope/w.csv"), "there is no folder /nope"),
        (("import-sacct", "/nope", "--traces", "{traces}"), "cannot read /nope: No such file"),
    ],
)
def test_that_an_error_of_a_subcommand_is_one_line(
    inputs: tuple[str, ...], tmp_path: Path, words: tuple[str, ...], message: str, refused: Refused
) -> None:
    filled = [word.format(traces=inputs[2], workload=inputs[4], out=tmp_path / "out") for word in words]
    refused(("simulate", *filled), message)


def test_that_two_workloads_of_one_name_are_refused(
    inputs: tuple[str, ...], tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "small.csv"
    other.write_text(Path(inputs[4]).read_text())
    refused((*inputs, "--workload", str(other)), "two workloads are called 'small'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,time,application,num_replicas,batch_size\n", "no jobs"),
        ("name,time,application,num_replicas,batch_size\na,5,gpt,1,8\n", "no traces of application 'gpt'"),
    ],
)
def test_that_a_bad_workload_is_one_line(
    inputs: tuple[str, ...], text: str, message: str, refused: Refused
) -> None:
    Path(inputs[4]).write_text(text)
    refused(inputs, message)


def test_that_a_stores_jobs_are_simulated_with_their_delays(
    here: Command, refused: Refused, store: Store, store_url: str, tmp_path: Path
) -> None:
    trained(store)
    file = tmp_path / "queue.json"
    done = here("simulate", "export", "--store", store_url, "--output", str(file))
    assert done.stderr == "1 jobs, delays of 1 moves and 1 starts; 0 jobs left out\n"
    every = experiment(tmp_path, "interval_s = 10")
    replay = ("simulate", every, "--traces", str(file), "--nodes", "1x4", "--json")
    done = here(*replay, "--rules", "slurm")
    found = json.loads(done.stdout)
    assert (found["workload"], list(found["jobs"])) == ("queue", ["1 train-1"])
    instant = json.loads(file.read_text())
    instant["measured-jobs"]["delays"] |= {"start_s": 0.0, "launch_s": 0.0, "launch_per_gpu_s": 0.0}
    other = tmp_path / "instant.json"
    other.write_text(json.dumps(instant))
    given = experiment(tmp_path, 'interval_s = 10\ndelays = "instant.json"')
    sooner = json.loads(here(replay[0], given, *replay[2:], "--rules", "slurm").stdout)
    assert sooner["avg_jct_s"] < found["avg_jct_s"] - 5
    refused([replay[0], given, *replay[2:]], "line 2: delays would do nothing: it is of rules slurm")
    experiment(tmp_path, "interval_s = 10")
    workload = tmp_path / "twice.csv"
    lines = ("a,0,1 train-1,2,128,2", "b,30,1 train-1,2,128,0")
    workload.write_text(
        "\n".join(["name,time,application,num_replicas,batch_size,start_gpus", *lines]) + "\n"
    )
    twice = json.loads(here(*replay, "--rules", "slurm", "--workload", str(workload)).stdout)
    assert list(twice["jobs"]) == ["a", "b"]


def test_that_rules_slurm_take_the_cost_that_is_expected_of_a_first_move(
    here: Command, inputs: tuple[str, ...], tmp_path: Path
) -> None:
    def restarts(text: str = "") -> float:
        words = (experiment(tmp_path, text), *inputs[1:], "--rules", "slurm", "--policy", "pollux", "--json")
        done = here(inputs[0], *words)
        assert (done.returncode, done.stderr) == (0, "")
        return float(json.loads(done.stdout)["restarts_per_job"])

    # With an expected delay of an hour no job is moved, so no delay is measured.
    assert restarts("restart_delay_s = 3600") == 0 < restarts()
    assert restarts("restart_delay_s = 30") == restarts()


def test_that_the_genetic_policy_accepts_its_own_objective(
    here: Command, refused: Refused, inputs: tuple[str, ...]
) -> None:
    done = here(*inputs, "--policy", "genetic", "--objective", "osdi21", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["policy"] == "genetic"
    refused([*inputs, "--policy", "genetic", "--objective", "price-rank"], "--objective would do nothing")


def test_that_an_empty_store_has_nothing_to_simulate(refused: Refused, store: Store, store_url: str) -> None:
    refused(["simulate", "export", "--store", store_url], "no job that can be simulated")


def test_that_a_full_disk_is_one_line(inputs: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pollux_slurm", *inputs, "--policy", "tiresias", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert ended.returncode == 1
    assert ended.stderr == "pollux: cannot write the output: No space left on device\n"


def test_that_a_misspelled_option_is_refused_with_the_right_help(refused: Refused) -> None:
    refused(("simulate", "--polcy", "sia"), "(see: pollux simulate --help)")
    refused(("simulate", "generate", "--lod", "1"), "(see: pollux simulate generate --help)")
    refused(("simulat",), "(see: pollux --help)")


def test_that_an_interrupted_experiment_prints_how_to_continue(
    inputs: tuple[str, ...], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    # 4,000 runs: minutes, so that a test that is slow to look does not find it at its end.
    text = f"restart_delay_s = {list(range(200))}\ninterval_s = {list(range(60, 80))}"
    words = [inputs[0], experiment(tmp_path, text), *inputs[1:], "--policy", "tiresias", "--jobs", "1"]
    command = [sys.executable, "-m", "pollux_slurm", *words, "--output", str(kept)]
    # A shell gives what it runs in the background no interrupt; a terminal does.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_hear_interrupts
    ) as running:
        wait_until(lambda: [*kept.glob("runs/*.json")], timeout_s=300, what="the first run")
        running.send_signal(signal.SIGINT)
        out, done = running.communicate(timeout=300)
    assert (running.returncode, out) == (130, "")
    assert f"pollux: interrupted; the same command continues with the runs in {kept}\n" in done


def test_that_an_interrupted_experiment_goes_on_to_the_same_results(
    inputs: tuple[str, ...], tmp_path: Path
) -> None:
    """Interrupted in its third run; the policy of that one answers nothing until a file is there."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    (tmp_path / "waits.py").write_text(
        "import json, pathlib, sys, time\n"
        "for line in sys.stdin:\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n"
        f"    while not pathlib.Path({str(go)!r}).exists():\n"
        "        time.sleep(0.05)\n"
        "    problem = json.loads(line)['round']['problem']\n"
        "    nodes = {job['job_id']: {problem['nodes'][0]['name']: 1} for job in problem['jobs']}\n"
        "    print(json.dumps({'allocations': nodes}), flush=True)\n"
    )
    program = f'{{name = "external", command = ["{sys.executable}", "waits.py"], time_limit_s = 600}}'
    text = f'policy = ["tiresias", "optimus", {program}, "slurm"]'
    words = [inputs[0], experiment(tmp_path, text), *inputs[1:], "--jobs", "1", "--output"]
    kept, whole = tmp_path / "kept", tmp_path / "whole"
    command = [sys.executable, "-m", "pollux_slurm", *words, str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=_hear_interrupts) as running:
        wait_until(begun.exists, timeout_s=300, what="the third run")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=300)
    first = {file: file.stat().st_mtime_ns for file in kept.glob("runs/*.json")}
    assert (running.returncode, len(first)) == (130, 2)
    go.touch()
    for folder in (kept, whole):
        done = pollux(*words, str(folder))
        assert done.returncode == 0, done.stderr
    after = {file: file.stat().st_mtime_ns for file in kept.glob("runs/*.json")}
    assert len(after) == 4
    assert first.items() <= after.items(), "what was done is not done again"
    assert simulated_rows(kept / "table.csv") == simulated_rows(whole / "table.csv")


def simulated_rows(file: Path) -> list[dict[str, str]]:
    """Return the rows without how long decisions took."""
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{key: value for key, value in row.items() if not key.startswith("solve_")} for row in rows]


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
