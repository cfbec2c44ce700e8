"""The lineage of checkpoints: claims, files, leftover processes, damage."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pollux_slurm.agent.checkpoints.lineage import CheckpointId, Lineage, claim_run, read_claim
from pollux_slurm.errors import CheckpointError, DamagedCheckpointError, DiskFullError, SupersededRunError
from tests.waiting import wait_until

T0 = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def claim(
    directory: Path, restart: int = 0, *, num_kept: int = 2, goes_on_from: int | None = None
) -> Lineage:
    return claim_run(
        directory,
        restart_count=restart,
        host="n0",
        pid=os.getpid(),
        at=T0,
        num_kept=num_kept,
        goes_on_from=goes_on_from,
    )


def write(lineage: Lineage, text: str) -> Path:
    return lineage.write(lambda file: file.write(text.encode()) and None).path


def content(lineage: Lineage) -> str | None:
    return None if lineage.resume_path is None else lineage.resume_path.read_text()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


def test_that_the_first_run_starts_from_nothing(tmp_path: Path) -> None:
    first = claim(tmp_path / "new" / "deep")
    assert (first.claim.run_number, first.resume_path) == (0, None)


def test_that_a_run_resumes_from_the_newest_checkpoint_of_the_previous_run(tmp_path: Path) -> None:
    first = claim(tmp_path)
    for text in "abc":
        write(first, text)
    second = claim(tmp_path, 1)
    assert (second.claim.run_number, content(second)) == (1, "c")


def test_that_after_a_run_without_checkpoints_the_next_resumes_from_the_same_one(tmp_path: Path) -> None:
    write(claim(tmp_path), "a")
    claim(tmp_path, 1)
    claim(tmp_path, 2)
    assert content(claim(tmp_path, 3)) == "a"


def test_that_the_last_two_checkpoints_of_the_lineage_are_kept(tmp_path: Path) -> None:
    first = claim(tmp_path)
    for text in "abcd":
        write(first, text)
    assert [(tmp_path / "checkpoints" / name).read_text() for name in files(tmp_path)] == ["c", "d"]
    write(claim(tmp_path, 1), "e")
    assert [(tmp_path / "checkpoints" / name).read_text() for name in files(tmp_path)] == ["d", "e"]


@pytest.mark.parametrize(
    ("num_kept", "first_kept", "second_kept"), [(1, ["d"], ["e"]), (3, ["b", "c", "d"], ["c", "d", "e"])]
)
def test_that_as_many_checkpoints_are_kept_as_the_settings_say(
    tmp_path: Path, num_kept: int, first_kept: list[str], second_kept: list[str]
) -> None:
    def kept() -> list[str]:
        return [(tmp_path / "checkpoints" / name).read_text() for name in files(tmp_path)]

    first = claim(tmp_path, num_kept=num_kept)
    for text in "abcd":
        write(first, text)
    assert kept() == first_kept
    second = claim(tmp_path, 1, num_kept=num_kept)
    assert content(second) == "d"
    write(second, "e")
    assert kept() == second_kept


def test_that_a_file_name_holds_the_checksum_of_its_content(tmp_path: Path) -> None:
    path = write(claim(tmp_path), "a")
    known = CheckpointId.parse(path.name)
    assert known is not None
    assert known.sha256 == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


@pytest.mark.parametrize("damage", [b"", b"b", b"bb-and-more", None])
def test_that_a_damaged_newest_checkpoint_falls_back_to_the_previous_one(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    first = claim(tmp_path)
    write(first, "aa")
    newest = write(first, "bb")
    if damage is None:
        newest.unlink()
        newest.mkdir()
    else:
        newest.write_bytes(damage)
    assert content(claim(tmp_path, 1)) == "aa"
    assert "is damaged: trying the previous one" in caplog.text


def test_that_a_damaged_newest_checkpoint_of_an_earlier_run_falls_back_within_that_run(
    tmp_path: Path,
) -> None:
    first = claim(tmp_path)
    write(first, "a")
    newest = write(first, "b")
    claim(tmp_path, 1)
    newest.write_text("?")
    assert content(claim(tmp_path, 2)) == "a"


def test_that_only_damaged_checkpoints_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    write(claim(tmp_path), "a").write_text("?")
    with pytest.raises(DamagedCheckpointError, match="all checkpoints are damaged"):
        claim(tmp_path, 1)


def test_that_a_vanished_checkpoint_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    path = write(claim(tmp_path), "a")
    claim(tmp_path, 1)
    path.unlink()
    with pytest.raises(DamagedCheckpointError, match="all checkpoints are damaged"):
        claim(tmp_path, 2)


def test_that_checkpoints_without_claims_are_refused(tmp_path: Path) -> None:
    write(claim(tmp_path), "a")
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointError, match="move them away"):
        claim(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", '{"resumed_from": 3}', '{"resumed_from": "../x"}', "[]", "[" * 100_000]
)
def test_that_a_malformed_claim_is_refused_by_name(tmp_path: Path, text: str) -> None:
    claim(tmp_path)
    (tmp_path / "runs" / "000000.json").write_text(text)
    with pytest.raises(CheckpointError, match="not the claim of a run"):
        claim(tmp_path, 1)


@pytest.mark.parametrize("number", ["٣" * 6, "9" * 21, "9" * 5000])
def test_that_a_file_with_another_number_is_no_checkpoint(number: str) -> None:
    assert CheckpointId.parse(f"000001-000001-{'a' * 64}.pt") is not None
    assert CheckpointId.parse(f"{number}-000001-{'a' * 64}.pt") is None


def test_that_a_claim_cannot_refer_to_a_later_run(tmp_path: Path) -> None:
    first = claim(tmp_path)
    name = write(first, "a").name
    (tmp_path / "runs" / "000000.json").write_text(json.dumps({"resumed_from": name}))
    with pytest.raises(CheckpointError, match="not the claim of a run"):
        read_claim(tmp_path, 0)


def test_that_a_leftover_run_cannot_write_after_the_next_has_claimed(tmp_path: Path) -> None:
    leftover = claim(tmp_path)
    write(leftover, "a")
    claim(tmp_path, 1)
    with pytest.raises(SupersededRunError, match="run 2 of this job has taken over from run 1"):
        write(leftover, "b")
    assert len(files(tmp_path)) == 1


def test_that_a_leftover_run_cannot_claim_the_next_one_to_go_on_in_memory(tmp_path: Path) -> None:
    write(claim(tmp_path), "a")
    assert claim(tmp_path, goes_on_from=0).claim.run_number == 1
    claim(tmp_path, 1)
    with pytest.raises(SupersededRunError, match="run 3 of this job has taken over from run 2"):
        claim(tmp_path, goes_on_from=1)
    assert content(claim(tmp_path, 2)) == "a"


def test_that_a_claim_made_while_a_leftover_writes_stops_its_rename(tmp_path: Path) -> None:
    leftover = claim(tmp_path)
    write(leftover, "a")

    def serialize(file: object) -> None:
        claim(tmp_path, 1)

    with pytest.raises(SupersededRunError):
        leftover.write(serialize)
    assert len(files(tmp_path)) == 1


def test_that_a_file_that_a_leftover_writes_after_the_claim_is_ignored(tmp_path: Path) -> None:
    # The worst moment: the leftover has checked for claims, and renames just after the next run claims.
    leftover = claim(tmp_path)
    old = write(leftover, "a")
    second = claim(tmp_path, 1)
    (tmp_path / "checkpoints" / old.name.replace("-000001-", "-000002-")).write_text("a")
    assert content(second) == "a"
    third = claim(tmp_path, 2)
    assert third.resume_path == old
    write(third, "c")
    write(third, "d")
    assert [name[:13] for name in files(tmp_path)] == ["000002-000001", "000002-000002"]


def test_that_only_one_of_many_simultaneous_claims_gets_each_number(tmp_path: Path) -> None:
    # In containers, processes of one host may have the same id.
    numbers: list[int] = []
    begin = threading.Barrier(8)

    def run(index: int) -> None:
        begin.wait(300)
        lineage = claim_run(tmp_path, restart_count=0, host=f"n{index % 4}/..", pid=1, at=T0)
        numbers.append(lineage.claim.run_number)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(numbers) == list(range(8))


def test_that_a_writer_killed_in_mid_write_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    code = f"""
import os, signal
from datetime import datetime, timezone
from pathlib import Path
from pollux_slurm.agent.checkpoints.lineage import claim_run
lineage = claim_run(Path({str(tmp_path)!r}), restart_count=0, host="n0", pid=os.getpid(),
                    at=datetime.now(timezone.utc))
lineage.write(lambda file: file.write(b"whole"))
def half(file):
    file.write(b"x" * 100_000)
    file.flush()
    print("half", flush=True)
    signal.pause()
lineage.write(half)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    leftovers = [name for name in files(tmp_path) if name.endswith(".tmp")]
    assert len(leftovers) == 1
    following = claim(tmp_path, 1)
    assert content(following) == "whole"
    write(following, "next")
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "Input/output error"), RuntimeError("[enforce fail] Input/output error")],
    ids=["write", "torch"],
)
def test_that_a_disk_that_fails_is_an_error_that_changes_nothing(tmp_path: Path, error: Exception) -> None:
    lineage = claim(tmp_path)
    write(lineage, "a")

    def fail(file: object) -> None:
        raise error

    before = files(tmp_path)
    with pytest.raises(CheckpointError, match="Input/output error"):
        lineage.write(fail)
    assert files(tmp_path) == before
    write(lineage, "b")
    assert content(claim(tmp_path, 1)) == "b"


def test_that_on_a_full_disk_the_older_checkpoints_make_room(tmp_path: Path) -> None:
    lineage = claim(tmp_path)
    for text in "ab":
        write(lineage, text)

    def fill(file: BinaryIO) -> None:
        if len(files(tmp_path)) > 2:  # with the file that is being written
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        file.write(b"c")

    lineage.write(fill)
    assert [(tmp_path / "checkpoints" / name).read_text() for name in files(tmp_path)] == ["b", "c"]


def test_that_the_newest_checkpoint_stays_where_there_is_no_room_for_another(tmp_path: Path) -> None:
    lineage = claim(tmp_path)
    for text in "ab":
        write(lineage, text)

    def fail(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with pytest.raises(DiskFullError, match="the disk or your quota is full: free some space"):
            lineage.write(fail)
        assert [(tmp_path / "checkpoints" / name).read_text() for name in files(tmp_path)] == ["b"]
    assert content(claim(tmp_path, 1)) == "b"


def test_that_a_directory_that_cannot_be_created_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used for checkpoints"):
        claim(tmp_path / "file")


def test_that_a_claim_appears_atomically(tmp_path: Path) -> None:
    # Read as fast as possible while others claim: never a partial file.
    stop = threading.Event()
    problems: list[str] = []

    def watch() -> None:
        while not stop.is_set():
            for path in (tmp_path / "runs").glob("[0-9]*.json"):
                try:
                    json.loads(path.read_text())
                except ValueError as error:
                    problems.append(str(error))

    (tmp_path / "runs").mkdir()
    watcher = threading.Thread(target=watch)
    watcher.start()
    for restart in range(20):
        claim(tmp_path, restart)
    stop.set()
    wait_until(lambda: not watcher.is_alive(), timeout_s=120, what="the watcher")
    assert problems == []


class LineageMachine(RuleBasedStateMachine):
    """Runs claim, write and linger in any order; each checkpoint contains the whole history of its lineage.

    The history a run resumes from must always be the one of the run it resumed, never with a leftover's part.
    """

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="lineage-"))
        self.histories: dict[int, str] = {}
        self.written: dict[int, str] = {}
        self.newest = -1

    @rule(target=runs)
    def start(self) -> Lineage:
        # Checkpoints that the run before last confirmed while it was current.
        expected = self.written.get(self.newest, "")
        run = claim(self.directory)
        number = run.claim.run_number
        assert number == self.newest + 1
        assert (content(run) or "") == expected
        self.newest = number
        self.histories[number] = self.written[number] = expected
        return run

    @rule(run=runs, part=st.sampled_from("xyz"))
    def train_and_write(self, run: Lineage, part: str) -> None:
        number = run.claim.run_number
        self.histories[number] += f"{part}{number} "
        try:
            write(run, self.histories[number])
        except SupersededRunError:
            assert number < self.newest
        else:
            assert number == self.newest
            self.written[number] = self.histories[number]

    @rule(run=runs)
    def slip_in(self, run: Lineage) -> None:
        # A leftover whose rename comes after the next claim, as a slow file system could order it.
        number = run.claim.run_number
        if number < self.newest:
            text = f"leftover of {number}".encode()
            name = CheckpointId(
                run_number=number, sequence=999_999, sha256=hashlib.sha256(text).hexdigest()
            ).file_name
            (self.directory / "checkpoints" / name).write_bytes(text)

    @invariant()
    def few_files_are_kept(self) -> None:
        if self.newest >= 0:
            own = [name for name in files(self.directory) if "-999999-" not in name]
            assert len(own) <= 2

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


TestLineageMachine = LineageMachine.TestCase
TestLineageMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
