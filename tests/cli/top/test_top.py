"""`pollux top` in Textual's own harness, over a real store."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("textual")

from textual.widgets import DataTable, Input, Static

from pollux_slurm.cli.top.app import TopApp
from pollux_slurm.cli.top.job_screen import JobScreen, JobStory
from pollux_slurm.config import load_config
from pollux_slurm.errors import PolluxError, StoreUnavailable
from pollux_slurm.model import JobState, ReallocationCause
from pollux_slurm.now.cluster import ClusterNow
from pollux_slurm.store import open_store
from tests.cli.inside import pollux
from tests.report.stories import HOSTILE
from tests.store.builders import at, observation, registration, report, token_of

if TYPE_CHECKING:
    from textual.pilot import Pilot

_DEADLINE_S = 60.0


def top(url: str, **changes: bool) -> TopApp:
    config = load_config({})
    config = dataclasses.replace(config, store=dataclasses.replace(config.store, url=url))
    return TopApp(config, every_s=3600, clock=lambda: at(100), **changes)


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        await pilot.pause(0.02)
    await pilot.pause()


def shown_on(app: TopApp) -> str:
    """Return all text of the first screen: of the table and around it."""
    screen = app.screen_stack[0]
    table = screen.query_one(DataTable)
    rows = [" ".join(str(cell) for cell in table.get_row_at(row)) for row in range(table.row_count)]
    return "\n".join([*(str(one.render()) for one in screen.query(Static)), *rows])


def played(app: TopApp, play: Callable[[Pilot[None]], object], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.picture is not None)
            await play(pilot)  # type: ignore[misc]

    asyncio.run(run())


def test_that_jobs_gpus_moves_and_a_missing_daemon_are_shown_at_80_by_24(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        text = shown_on(app)
        for part in ("9 GPUs: 1 held, 8 free", "1 running, 1 pending", "no daemon runs", "waits", "n3"):
            assert part in text
        assert "moves under way: none" in text
        assert HOSTILE not in text
        assert "\x1b" not in text
        assert "\u202e" not in text

    played(app, play)


def test_that_an_ascii_terminal_gets_ascii_only(url: str) -> None:
    app = top(url, is_ascii=True)

    async def play(pilot: Pilot[None]) -> None:
        assert shown_on(app).isascii()
        labels = "".join(str(column.label) for column in app.query_one(DataTable).columns.values())
        assert "xSHARE" in labels
        assert labels.isascii()

    played(app, play)


def test_that_a_filter_leaves_the_jobs_with_its_words_and_escape_shows_all(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        table = app.query_one(DataTable)
        await pilot.press("slash", *"user:edsger")
        await until(pilot, lambda: table.row_count == 1)
        assert "waits" in shown_on(app)
        await pilot.press("escape")
        await until(pilot, lambda: table.row_count == 2)
        assert not app.query_one(Input).display

    played(app, play)


def test_that_a_column_has_room_for_its_cells_as_soon_as_it_is_drawn(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        app.on_resize()  # draws; the table has had no idle moment since
        table = app.query_one(DataTable)
        for place, column in enumerate(table.ordered_columns):
            cells = [table.get_row_at(row)[place].cell_len for row in range(table.row_count)]
            assert column.get_render_width(table) >= max(cells) + 2 * table.cell_padding

    played(app, play)


def test_that_a_refresh_keeps_the_place_in_a_table_that_is_wider_and_longer_than_the_terminal(
    store_url: str,
) -> None:
    store = open_store(store_url)
    store.jobs.register(
        [registration(number, name="n" * 30, user_name="u" * 20) for number in range(99)], at=at(0)
    )
    store.close()
    app = top(store_url)

    async def play(pilot: Pilot[None]) -> None:
        table = app.query_one(DataTable)
        await until(pilot, lambda: table.max_scroll_x > 4)
        table.scroll_to(4, 30, animate=False)
        await until(pilot, lambda: table.scroll_offset == (4, 30))
        picture = app.picture
        app.action_read()
        await until(pilot, lambda: app.picture is not picture)
        await until(pilot, lambda: table.scroll_offset == (4, 30))

    played(app, play, (60, 24))


def test_that_sorting_changes_the_order_and_can_be_turned(url: str) -> None:
    app = top(url)

    def users() -> list[str]:
        table = app.query_one(DataTable)
        return [str(table.get_row_at(row)[3]) for row in range(table.row_count)]

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("s", "s")  # after the job, its name, and then its user
        assert users() == ["edsger", "grace"]
        await pilot.press("S")
        assert users() == ["grace", "edsger"]

    played(app, play)


def test_that_looking_into_a_job_shows_its_reasons_and_its_gpus_over_time(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        story = app.screen.query_one("#story", Static)
        await until(pilot, lambda: "GPUs over time" in str(story.render()))
        text = str(story.render())
        assert "n3:1" in text
        assert "not more" in text
        assert max(map(len, text.splitlines())) <= 78
        assert "\x1b" not in text
        await pilot.press("slash", "s")  # keys of the table do nothing here
        await pilot.press("escape")
        assert not isinstance(app.screen, JobScreen)

    played(app, play)


def test_that_a_job_that_was_left_while_it_was_read_ends_nothing(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and app.screen._story is not None)
        screen = app.screen
        assert isinstance(screen, JobScreen)
        assert isinstance(screen._story, JobStory)
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_attached)
        screen.show(screen._story)
        screen.show(StoreUnavailable("it is away"))
        not_there_yet = JobScreen("2", is_ascii=False)
        not_there_yet.show(screen._story)

    played(app, play)


def test_that_pause_asks_first_and_journals_the_order(store_url: str) -> None:
    store = open_store(store_url)
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, JobState.RUNNING, {"n1": 2}, started_at=at(1))], at=at(1))
    store.agent.report(token_of(1), report(1, num_steps=5), at=at(5))
    app = top(store_url)

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("p", "n")
        assert store.journal.open_reallocations() == ()
        await pilot.press("p", "y")
        await until(pilot, lambda: bool(store.journal.open_reallocations()))

    played(app, play)
    (move,) = store.journal.open_reallocations()
    assert (move.slurm_job_id, move.cause) == ("1", ReallocationCause.PAUSE)
    store.close()


def test_that_a_store_that_goes_away_is_named_and_the_last_picture_stays(url: str) -> None:
    app = top(url)

    async def play(pilot: Pilot[None]) -> None:
        config = app._config
        app._config = dataclasses.replace(
            config, store=dataclasses.replace(config.store, url="sqlite:////nowhere/pollux.db")
        )
        app.action_read()
        await until(pilot, lambda: "the store cannot be read" in shown_on(app))
        assert "waits" in shown_on(app)
        app._config = config
        app.action_read()
        await until(pilot, lambda: "the store cannot be read" not in shown_on(app))

    played(app, play)


def test_that_at_most_200_of_many_jobs_are_rows_and_the_rest_is_counted(store_url: str) -> None:
    store = open_store(store_url)
    store.jobs.register([registration(number) for number in range(1, 231)], at=at(0))
    store.close()
    app = top(store_url)

    async def play(pilot: Pilot[None]) -> None:
        assert app.query_one(DataTable).row_count == 200
        assert "30 more: filter with /" in shown_on(app)

    played(app, play, (140, 40))


def test_that_the_end_does_not_wait_for_a_read(url: str) -> None:
    reads, ended = threading.Event(), threading.Event()
    waited: list[bool] = []

    class SlowApp(TopApp):
        def _found(
            self, job_id: str | None
        ) -> tuple[ClusterNow | PolluxError, JobStory | PolluxError | None]:
            reads.set()
            waited.append(ended.wait(_DEADLINE_S))
            return super()._found(job_id)

    async def run() -> None:
        app = SlowApp(top(url)._config, every_s=3600)
        async with app.run_test() as pilot:
            await until(pilot, reads.is_set)
            await pilot.press("q")

    asyncio.run(run())
    assert waited == []
    ended.set()


def test_that_without_a_terminal_one_line_says_what_to_use(url: str) -> None:
    done = pollux("top", "--store", url)
    assert done.returncode != 0
    assert "pollux status --watch" in done.stderr


def test_that_without_textual_one_line_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("pollux_slurm.cli.top.")]:
        if not name.endswith(".command"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    done = pollux("top", "--store", url)
    assert (
        done.stderr
        == "pollux: pollux top needs Textual; in a checkout of pollux-slurm: pip install '.[view]'\n"
    )
