"""Small screens above the table: a question before an order, and the keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from pollux_slurm.cli.top.drawings import LEGEND

HELP = f"""Keys
  up, down    choose a job; its GPUs are marked below
  Enter       look into the job: goodput, batch size, GPUs, reasons
  /           filter: words, or user:ada account:vision state:running
  Esc         remove the filter; leave a screen
  s, S        sort by the next column; turn the order round
  p, r        pause the job; resume it (asks first)
  ?           this page
  q           quit

GPUs by node: {LEGEND}
A ! after a state: pollux explain JOB says what to look at."""


class Question(ModalScreen[bool]):
    """Asks for yes or no; every key but `y` means no."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(f"{self._text}\n\n[y] yes   [n] no", markup=False, classes="dialog")

    def on_key(self, event: object) -> None:
        self.dismiss(getattr(event, "key", "") == "y")


class Keys(ModalScreen[None]):
    """Lists the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "app.pop_screen", "Close")]

    def compose(self) -> ComposeResult:
        yield Static(HELP, markup=False, classes="dialog")
