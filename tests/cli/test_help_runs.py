"""Examples of `--help` that need a store or nothing, run as they stand; others need a Slurm or a script."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pollux_slurm.model import JobState
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.cli.test_help import ALL, examples
from tests.report.test_tracked_loss import tracked, write
from tests.store.builders import decision_of, observation, problem_of, registration, report, token_of
from tests.store_fixtures import copied

READS_A_STORE = {
    *{("explain",), ("status",), ("db", "check"), ("db", "prune"), ("db", "upgrade")},
    *{("report", name) for name in ("account", "alerts", "cluster", "dashboard", "job", "shadow")},
    *{("simulate", "export")},
}
NEEDS_NOTHING = {("config", "example"), ("config", "table"), ("db", "schema"), ("simulate", "generate")}


@pytest.fixture(scope="module")
def filled(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Return what copies a store like that of the examples: jobs 1234 and 1240 run, 7 has ended."""
    path = tmp_path_factory.mktemp("filled") / "pollux.db"
    store = open_store(copied(store_template, path))
    now = datetime.now(timezone.utc)
    for number, begin, end in (
        (1234, now - timedelta(hours=2), None),
        (1240, now - timedelta(hours=1), None),
        (7, datetime(2026, 1, 10, tzinfo=timezone.utc), datetime(2026, 10, 10, tzinfo=timezone.utc)),
    ):
        start = begin + timedelta(minutes=1)
        store.jobs.register([registration(number, submitted_at=begin)], at=begin)
        gpus = {f"n{number}": 2}
        store.jobs.observe([observation(number, gpus=gpus, started_at=start)], at=start)
        for sequence in (1, 2, 3):
            store.agent.report(token_of(number), report(sequence), at=start + timedelta(minutes=sequence))
        store.rounds.record(
            problem_of([number]), decision_of([number]), shadow=True, at=start + timedelta(minutes=5)
        )
        if end is not None:
            store.jobs.observe([observation(number, JobState.COMPLETED, ended_at=end)], at=end)
    store.close()
    return lambda to: copied(path, to)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=" ".join(words))
        for path, command in sorted(ALL.items())
        if path in READS_A_STORE | NEEDS_NOTHING
        for words in examples(command)
        if "--watch" not in words  # until Ctrl-C
    ],
)
def test_that_an_example_does_what_it_says(
    words: list[str], filled: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pollux.toml"
    settings.write_text(f'[store]\nurl = "{filled(tmp_path / "store.db")}"\n')
    monkeypatch.setenv("POLLUX_CONFIG", str(settings))
    monkeypatch.chdir(tmp_path)
    if words[:2] == ["simulate", "--traces"]:  # it simulates what the example before it has exported
        assert pollux("simulate", "export", "--since", "2026-01-01", "--output", words[2]).returncode == 0
    for option, value in itertools.pairwise(words):
        if option == "--tracker":
            write(tmp_path / value, *tracked([(10, 8, 3.0), (20, 8, 2.5)]))
    done = pollux(*words)
    assert (done.returncode, done.stderr.count("\n")) in ((0, 0), (0, 1)), done.stderr
    assert done.stdout or done.stderr
    for option in {"-o", "--output"} & set(words):
        wanted = Path(words[words.index(option) + 1])
        written = list(tmp_path.glob(f"{wanted.stem}*{wanted.suffix}"))  # a picture of each plot
        assert written
        assert min(file.stat().st_size for file in written) > 100
        assert all(f"wrote {file.name}" in done.stdout for file in written)
