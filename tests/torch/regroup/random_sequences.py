"""Random sequences of joins, leaves, restarts and kills, compared with a training that never moves.

    python -m tests.torch.regroup.random_sequences --count 50 --seed 1 [--variant NAME]

Each sequence is drawn from its own seed, which a failure prints.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.torch.ranks import run_ranks
from tests.torch.regroup import script
from tests.torch.regroup.comparison import assert_same
from tests.torch.regroup.members import Members

MAX_MEMBERS = 6
NUM_EPOCHS = 12
_OPERATIONS = ("join", "leave", "replace", "restart", "kill")
_WEIGHTS = (4, 4, 3, 1, 1)


@dataclass
class Tally:
    """What happened in a sequence."""

    variant: str
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Sequence:
    """One training under random changes."""

    def __init__(self, folder: Path, variant: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._folder, self._gate = folder, folder / "gate"
        self._gate.mkdir()
        self._variant = script.VARIANTS[variant]
        self.tally = Tally(variant=variant)
        self._restarts, self._size = 0, 0
        self._next_step_s = 0.0
        self._members: Members | None = None

    def _open(self, num_steps: int) -> None:
        temporary = self._folder / "open"
        temporary.write_text(str(num_steps))
        temporary.rename(self._gate / "open")

    def _reached(self) -> int:
        return script.reached(self._gate)

    def _go_slowly(self) -> None:
        """Let the training make another step now and then."""
        if time.monotonic() > self._next_step_s:
            self._next_step_s = time.monotonic() + 0.05
            self._open(self._reached() + 1)

    def _start(self) -> Members:
        self._size = self._random.randint(1, MAX_MEMBERS)
        (self._gate / "reached").unlink(missing_ok=True)
        members = Members(
            self._folder,
            self._size,
            script.train,
            str(self._folder / "checkpoints-of-the-job"),
            str(self._gate),
            asdict(self._variant),
            NUM_EPOCHS,
            restart_count=self._restarts,
        )
        self._restarts += 1
        self.tally.events.append(f"start {self._size}")
        return members

    def run(self) -> list[Any]:
        """Go through the sequence; return what the members have returned."""
        at = self._random.randint(1, 6)
        self._open(at)
        members = self._members = self._start()
        for _ in range(self._random.randint(3, 6)):
            members.until(lambda at=at: self._reached() >= at, what=f"step {at}")
            if not members.running:
                break
            operation = self._random.choices(_OPERATIONS, _WEIGHTS)[0]
            if operation == "join" and self._size == MAX_MEMBERS:
                operation = "replace"
            if operation == "leave" and self._size == 1:
                operation = "join"
            at += self._random.randint(0, 3)
            if operation in ("restart", "kill"):
                self._end(members, operation, at)
                at = self._random.randint(1, 6) + at
                self._open(at)
                members = self._members = self._start()
                continue
            self._resize(members, operation)
            at = self._reached() + self._random.randint(1, 5)
            self._open(at)
        self._open(1 << 30)
        codes = members.wait()
        final = {one.id for one in members.resizing._generation.members}
        # A newcomer is stopped where the training ends before it could join.
        allowed = {name: {0} if name in final else {0, 143, -signal.SIGTERM} for name in codes}
        if any(codes[name] not in allowed[name] for name in codes) or members.killed_for_hanging:
            raise AssertionError(
                f"exit codes {codes}, hung: {members.killed_for_hanging}\n{members.output()}"
            )
        return members.results()

    def _end(self, members: Members, operation: str, at: int) -> None:
        """Stop or kill the run, somewhere between here and step `at`; sometimes within a regroup."""
        has_request = self._random.random() < 0.5
        if has_request:
            members.ask(self._random.randint(1, MAX_MEMBERS))
        self._open(at)
        if self._random.random() < 0.5:
            members.until(lambda: self._reached() >= at or not members.running, what=f"step {at}")
        else:
            pause_until = time.monotonic() + self._random.random() * 0.4
            members.until(lambda: time.monotonic() > pause_until, what="a moment")
        if not members.running:
            return
        self._open(1 << 30)
        if operation == "restart":
            members.terminate()
        else:
            members.kill(self._random.choice(members.running))
        codes = members.wait()
        self.tally.events.append(f"{operation}{' in a resize' if has_request else ''} {codes}")
        self.tally.counts[operation] += 1
        allowed = (
            {0, 143, -signal.SIGTERM}
            if operation == "restart"
            else {0, 143, 1, -signal.SIGKILL, -signal.SIGTERM}
        )
        if members.killed_for_hanging or not set(codes.values()) <= allowed:
            raise AssertionError(
                f"exit codes {codes}, hung: {members.killed_for_hanging}\n{members.output()}"
            )

    def _resize(self, members: Members, operation: str) -> None:
        size = self._size
        leaves: list[int] = []
        wanted = size
        if operation == "leave" and size > 1:
            wanted = self._random.randint(1, size - 1)
            leaves = sorted(self._random.sample(range(size), size - wanted))
        elif operation == "replace" and size > 1:
            leaves = sorted(self._random.sample(range(size), self._random.randint(1, size - 1)))
            wanted = size - len(leaves) + self._random.randint(1, max(1, MAX_MEMBERS - size + len(leaves)))
        else:
            wanted = min(size + self._random.randint(1, 2), MAX_MEMBERS)
        request = members.ask(wanted, leaves)
        if self._random.random() < 0.3:
            # The training waits here for the newcomers. Else it goes on meanwhile, a step now and then.
            number = members.resizing._generation.number
            members.until(
                lambda: members.folder.plan_after(number) or members.answered(request), what="the plan"
            )
        answer = members.until(
            lambda: members.answered(request) or self._go_slowly(), what=f"{size} -> {wanted}"
        )
        self.tally.events.append(f"{operation} {size} -> {wanted} without {leaves}: {answer}")
        if answer is not None and answer.is_done:
            self._size = wanted
            self.tally.counts[operation] += wanted != size or bool(leaves)
            self.tally.counts["rank 0 leaves"] += 0 in leaves
        else:
            self.tally.counts["ended before"] += 1


def run_sequence(folder: Path, variant: str, seed: int, references: dict[str, Any]) -> Tally:
    """Run one sequence and compare it; an error has its events as notes."""
    options = script.VARIANTS[variant]
    if variant not in references:
        unmoved = replace(options, max_batch_size=None)
        references[variant] = run_ranks(folder, 1, script.train, None, None, asdict(unmoved), NUM_EPOCHS)[0]
    sequence = Sequence(folder, variant, seed)
    try:
        results = sequence.run()
        assert results
        for result in results:
            assert_same(result, references[variant], options)
    except BaseException as error:
        members = sequence._members
        error.add_note(f"{variant}, seed {seed}: " + "\n  ".join(sequence.tally.events))
        if members is not None:
            error.add_note(members.output()[-6000:])
            for one in list(members._running):
                members.kill(one.member)
        raise
    return sequence.tally


def main() -> int:
    """Run sequences and print the tally."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variant", choices=script.VARIANTS)
    options = parser.parse_args()
    names = [options.variant] if options.variant else list(script.VARIANTS)
    counts: Counter[str] = Counter()
    failed = []
    references: dict[str, Any] = {}
    for index in range(options.count):
        seed, variant = options.seed + index, names[index % len(names)]
        folder = Path(tempfile.mkdtemp(prefix=f"regroup-{seed}-"))
        started = time.monotonic()
        try:
            tally = run_sequence(folder, variant, seed, references)
        except Exception as error:
            failed.append(seed)
            print(f"FAILED seed {seed}: {error!r}", *getattr(error, "__notes__", ()), sep="\n", flush=True)
            continue
        shutil.rmtree(folder, ignore_errors=True)
        counts.update(tally.counts)
        took_s = time.monotonic() - started
        print(f"seed {seed} {variant}: {took_s:.1f} s, {'; '.join(tally.events)}", flush=True)
    print(f"{options.count} sequences, {len(failed)} failed {failed}; {dict(counts)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
