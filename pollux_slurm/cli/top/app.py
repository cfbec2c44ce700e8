"""The live view: a cluster line, jobs up to a limit, the GPUs by node, moves under way and last decisions.

The store and Slurm are read in a thread, one read at a time, so that no key waits for them, nor the end.
When a read fails, the last picture stays and a line says why.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from pollux_slurm.cli.jobs.pause_resume_drain import who
from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.settings_and_store import opened_store
from pollux_slurm.cli.top.dialogs import Keys, Question
from pollux_slurm.cli.top.drawings import letter_style, letters_of, node_lines
from pollux_slurm.cli.top.job_screen import JobScreen, JobStory, in_ascii, read_story
from pollux_slurm.cli.top.reading import in_daemon_thread
from pollux_slurm.config import Config
from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.document.columns import Column, in_order, matches
from pollux_slurm.document.forms.terminal import cell_of
from pollux_slurm.errors import PolluxError
from pollux_slurm.now.cluster import ClusterNow, NodeState, read_cluster
from pollux_slurm.now.decision_text import move_text, short_reason
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.now.slurm_reading import read_slurm
from pollux_slurm.now.tables import job_columns
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.text import ago_text, shortened, shown, since_text

# What stands below the table or is of reports. A narrow terminal shows the rest when it is scrolled.
_ELSEWHERE = ("account", "slack", "checkpoint_bytes", "decision")
_AS_SUBMITTED = "slurm_job_id"
MOST_ROWS = 200
"""The table shows no more rows: nobody scrolls through thousands, and filling it stays quick."""
_MOST_MOVES = 3
_MOST_DECISIONS = 3


class TopApp(App[None]):
    """`pollux top`. `is_ascii` draws with ASCII characters only; `clock` returns the present time."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head, #away, #nodes, #news { height: auto; padding: 0 1; }
    #away { display: none; text-style: bold; }
    #jobs { height: 1fr; min-height: 4; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    .dialog { width: auto; max-width: 100%; height: auto; padding: 1 2; background: $panel; }
    Question, Keys { align: center middle; }
    #story { padding: 0 1; height: auto; }
    .ascii { scrollbar-size: 0 0; }
    """
    TITLE = "pollux top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        ("s", "sort", "Sort"),
        Binding("S", "reverse", "Turn", show=False),
        ("p", "pause", "Pause"),
        ("r", "resume", "Resume"),
        Binding("question_mark", "keys", "Help", key_display="?"),
        ("q", "quit", "Quit"),
        Binding("escape", "unfilter", "All", show=False),
    ]

    def __init__(
        self,
        config: Config,
        *,
        every_s: float,
        is_ascii: bool = False,
        clock: Callable[[], datetime] = clock.now,
    ) -> None:
        super().__init__()
        self._config = config
        self._every_s = every_s
        self._is_ascii = is_ascii
        self._clock = clock
        self._reads = False
        self._sort_by, self._reverse, self._words = _AS_SUBMITTED, False, ""
        self._columns: tuple[Column, ...] = ()
        self.picture: ClusterNow | None = None

    # ------------------------------------------------------------------------------------------ the screen

    def compose(self) -> ComposeResult:
        yield Static("reading ...", id="head", markup=False)
        yield Static("", id="away", markup=False)
        table: DataTable[Text] = DataTable(id="jobs", cursor_type="row")
        table.set_class(self._is_ascii, "ascii")
        yield table
        yield Input(id="filter", placeholder="words, or user: account: state: name: job:", compact=True)
        yield Static("", id="nodes", markup=False)
        yield Static("", id="news", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._table.focus()
        self.action_read()
        self.set_interval(self._every_s, self.action_read)

    @property
    def _table(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one("#jobs", DataTable)

    def _static(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    @property
    def chosen(self) -> str | None:
        """The id of the job that an order is for: the one looked into, else the one under the cursor."""
        if isinstance(self.screen, JobScreen):
            return self.screen.job_id
        return self._under_cursor()

    # ---------------------------------------------------------------------------------------------- reading

    def action_read(self) -> None:
        """Read in a thread, if no read is under way."""
        if self._reads:
            return
        self._reads = True
        self.run_worker(self._read(self.screen if isinstance(self.screen, JobScreen) else None))

    async def _read(self, screen: JobScreen | None) -> None:
        job_id = None if screen is None else screen.job_id
        found, story = await in_daemon_thread(lambda: self._found(job_id))
        self._reads = False
        if isinstance(found, ClusterNow):
            self.picture = found
        if screen is not None and story is not None:
            screen.show(story)
        self._show_away(found)
        self._draw()
        if isinstance(self.screen, JobScreen) and self.screen is not screen:
            self.action_read()  # it was opened during this read

    def _found(self, job_id: str | None) -> tuple[ClusterNow | PolluxError, JobStory | PolluxError | None]:
        """Read what is now, and the job that is looked into."""
        story = None
        try:
            with opened_store(self._config) as store:
                picture = read_cluster(store, now=self._clock(), slurm=lambda: read_slurm(self._config))
                if job_id is not None:
                    with open_view_reader(self._config.require_store_url()) as reports:
                        story = read_story(store, reports, job_id, picture)
        except PolluxError as error:
            return error, error
        return picture, story

    def _show_away(self, found: ClusterNow | PolluxError) -> None:
        if isinstance(found, ClusterNow):
            slurm = found.slurm_missing
            reasons = [found.missing, None if slurm is None else f"Slurm cannot be read: {slurm}"]
        else:
            reasons = [f"the store cannot be read, what is shown is old: {found}"]
        text = "\n".join("! " + " ".join(shown(one).split()) for one in reasons if one is not None)
        away = self._static("away")
        away.display = bool(text)
        away.update(self._text(text))

    # ---------------------------------------------------------------------------------------------- drawing

    def _text(self, text: str) -> str:
        return in_ascii(text) if self._is_ascii else text

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self.picture is not None:
            self._draw_jobs(self.picture)
            self._draw_nodes(self.picture)
            self._static("news").update(self._text(self._news(self.picture)))

    def _draw_jobs(self, picture: ClusterNow) -> None:
        columns = job_columns(picture)
        self._columns = tuple(one for one in columns if one.key not in _ELSEWHERE)
        found = self._ordered([job for job in picture.jobs if matches(job, columns, self._words)])
        jobs, num_more = found[:MOST_ROWS], max(len(found) - MOST_ROWS, 0)
        self._static("head").update(self._text(self._head(picture, len(jobs), num_more)))
        table, letters = self._table, letters_of(picture)
        chosen, row, place_x, place_y = self._under_cursor(), table.cursor_row, table.scroll_x, table.scroll_y
        table.clear(columns=True)
        table.add_column(" ", width=1)
        texts = [
            [
                Text(
                    self._text(cell_of(column, column.of(job), in_capitals=True)),
                    justify="left" if column.is_words else "right",
                    no_wrap=True,
                )
                for column in self._columns
            ]
            for job in jobs
        ]
        for place, column in enumerate(self._columns):
            label = Text(self._text(column.heading))
            # Left to the table, a column has its label's width until the table is idle.
            table.add_column(label, width=max(label.cell_len, *(row[place].cell_len for row in texts), 0))
        numbers = [job.record.slurm_job_id for job in jobs]
        rows = {number: index for index, number in reversed(list(enumerate(numbers)))}
        for index, (number, row_texts) in enumerate(zip(numbers, texts, strict=True)):
            letter = letters.get(number, " ")
            style = "" if letter == " " else letter_style(letter)
            table.add_row(
                Text(letter, style=style), *row_texts, key=number if rows[number] == index else None
            )
        table.move_cursor(row=rows.get(chosen or "", min(row, max(len(jobs) - 1, 0))), scroll=False)
        table.scroll_to(place_x, place_y, animate=False)

    def _ordered(self, jobs: list[JobNow]) -> list[JobNow]:
        column = next((one for one in self._columns if one.key == self._sort_by), None)
        if column is None or column.key == _AS_SUBMITTED:
            return jobs[::-1] if self._reverse else jobs
        return in_order(jobs, column, turned=self._reverse)

    def _under_cursor(self) -> str | None:
        table = self._table
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _draw_nodes(self, picture: ClusterNow) -> None:
        most = max(2, min(12, self.size.height // 4))
        drawn = node_lines(picture, width=self.size.width - 2, most=most, chosen=self._under_cursor())
        self._static("nodes").update(Text("\n").join(drawn) if drawn else "no nodes are known yet")

    def _head(self, picture: ClusterNow, num_shown: int, num_more: int) -> str:
        free = sum(node.num_free for node in picture.nodes)
        off = {
            state: sum(node.num_gpus - node.num_held for node in picture.nodes if node.state is state)
            for state in (NodeState.DRAINED, NodeState.DOWN)
        }
        gpus = f"{picture.num_gpus} GPUs: {picture.num_held} held, {free} free" + "".join(
            f", {number} {state.value}" for state, number in off.items() if number
        )
        last, due = picture.daemon.last_round_at, picture.next_round_at
        rounds = "no round yet" if last is None else f"round {ago_text(last, picture.read_at)}"
        if picture.daemon.is_shadow:
            rounds += " (shadow mode)"
        if due is not None:
            rounds += f", next in {since_text(picture.read_at, due)}"
        title = next((one.title for one in self._columns if one.key == self._sort_by), "job")
        order = f"by {title}{', turned' if self._reverse else ''}"
        filtered = f", only {shown(self._words)!r}" if self._words else ""
        more = f", {num_more} more: filter with /" if num_more else ""
        return (
            f"{picture.read_at:%H:%M:%S} UTC   {rounds}   {gpus}\n"
            f"jobs: {picture.jobs_sentence}   ({num_shown} shown {order}{filtered}{more})"
        )

    def _news(self, picture: ClusterNow) -> str:
        moves = picture.moves
        found = [f"moves under way: {len(moves) or 'none'}"]
        for job, move in moves[:_MOST_MOVES]:
            since = since_text(move.times[0][1], picture.read_at)
            found.append(f"  job {move.slurm_job_id} {move_text(move, job.record.state)}, since {since}")
        if picture.decided:
            found.append("last decisions:")
        for record in (one.record for one in picture.decided[:_MOST_DECISIONS]):
            has = record.last_decision or "no GPUs"
            found.append(f"  job {record.slurm_job_id} {has}: {short_reason(record)}")
        width = max(self.size.width - 2, 10)
        return "\n".join(shortened(self._text(shown(line)), width) for line in found)

    # ------------------------------------------------------------------------------------------------- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the table do nothing while another screen is shown."""
        of_table = action in ("filter", "unfilter", "sort", "reverse", "keys")
        return not (of_table and len(self.screen_stack) > 1)

    def on_data_table_row_highlighted(self) -> None:
        if self.picture is not None:
            self._draw_nodes(self.picture)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self.push_screen(JobScreen(event.row_key.value, is_ascii=self._is_ascii))
            self.action_read()

    def action_keys(self) -> None:
        self.push_screen(Keys())

    def action_sort(self) -> None:
        keys = [one.key for one in self._columns]
        if keys:
            self._sort_by = keys[(keys.index(self._sort_by) + 1) % len(keys) if self._sort_by in keys else 0]
        self._draw()

    def action_reverse(self) -> None:
        self._reverse = not self._reverse
        self._draw()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_unfilter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).display = bool(self._words)
        self._table.focus()

    def action_pause(self) -> None:
        self._ask("pause", "It writes a checkpoint, gives its GPUs back and waits until it is resumed.")

    def action_resume(self) -> None:
        self._ask("resume", "It gets GPUs again as soon as some are free.")

    def _ask(self, verb: str, meaning: str) -> None:
        job_id = self.chosen
        if job_id is None:
            return

        def answer(is_yes: bool | None) -> None:
            if is_yes:
                self.run_worker(lambda: self._order(verb, job_id), thread=True)

        self.push_screen(Question(f"{verb} job {job_id}?\n{meaning}"), answer)

    def _order(self, verb: str, job_id: str) -> None:
        """Write the order into the journal, as `pollux pause` and `pollux resume` do."""

        def give(store: Store) -> None:
            if verb == "pause":
                admin_orders.pause(store, job_id, by=who(), drain=False, at=self._clock())
            else:
                admin_orders.resume(store, job_id, by=who(), at=self._clock())

        try:
            with opened_store(self._config) as store:
                give(store)
        except PolluxError as error:
            self.call_from_thread(self.notify, shown(str(error)), severity="error", markup=False)
        else:
            text = f"{verb} job {job_id}: ordered, the daemon does so in its next round"
            self.call_from_thread(self.notify, text, markup=False)
        self.call_from_thread(self.action_read)
