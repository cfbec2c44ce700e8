"""An SQLite store is for one host, and for one user or group: all others are refused with what to do."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.errors import StoreError, UsageError
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.access.file_permissions import host_id, read_host_id
from pollux_slurm.store.maintenance.administration import claim_store, share_store
from tests.store.builders import at, registration

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def set_host_id(url: str, number: int) -> None:
    """Write the id of another host into the file."""
    with path_of(url).open("r+b") as file:
        file.seek(60)
        file.write(number.to_bytes(4, "big"))


OTHER = """
import sys
from pollux_slurm.store import open_store
from tests.store.builders import at, registration
store = open_store(sys.argv[1])
store.jobs.register([registration(int((sys.argv[2:] or ["2"])[0]))], at=at(1))
store.close()
"""


class TestHosts:
    def test_that_a_store_has_the_id_of_the_host_that_made_it(self, store_url: str) -> None:
        assert read_host_id(path_of(store_url)) == host_id()

    def test_that_reading_the_host_id_keeps_the_locks_of_this_process(self, store_url: str) -> None:
        # Without the locks, the other process would delete the write-ahead log that this one still uses.
        with contextlib.closing(open_store(store_url)) as mine:
            mine.jobs.register([registration(1)], at=at(0))
            with contextlib.closing(open_store(store_url)):
                pass
            read_host_id(path_of(store_url))
            code = [sys.executable, "-c", OTHER, store_url]
            subprocess.run(code, check=True, timeout=300)
            assert [job.slurm_job_id for job in mine.jobs.active()] == ["1", "2"]
            mine.jobs.register([registration(3)], at=at(2))
            subprocess.run([*code, "4"], check=True, timeout=300)
            assert len(mine.jobs.active()) == 4

    def test_that_host_ids_differ_between_hosts(self, tmp_path: Path) -> None:
        one, other = tmp_path / "one", tmp_path / "other"
        one.write_text("0123456789abcdef\n")
        other.write_text("fedcba9876543210\n")
        hosts = [("n0", one), ("n1", one), ("n0", other), ("n0", tmp_path / "none")]
        ids = [host_id(name=name, machine_id_file=file) for name, file in hosts]
        assert len(set(ids)) == 4
        assert all(0 < number < 2**31 for number in ids)

    def test_that_another_hosts_store_is_refused_untouched_until_it_is_claimed(self, store_url: str) -> None:
        set_host_id(store_url, host_id() % 2**30 + 1)
        before = path_of(store_url).read_bytes()
        for opening in (open_store, open_agent_store):
            with pytest.raises(StoreError, match="belongs to another host") as refused:
                opening(store_url)
            assert "POLLUX_STORE_URL=postgresql://" in str(refused.value)
            assert str(refused.value).endswith(f"pollux db claim --store {store_url}")
        assert path_of(store_url).read_bytes() == before
        assert [entry.name for entry in path_of(store_url).parent.iterdir()] == ["pollux.db"]
        claim_store(store_url)
        open_store(store_url).close()
        assert read_host_id(path_of(store_url)) == host_id()

    def test_that_a_store_without_a_host_id_opens(self, store_url: str) -> None:
        set_host_id(store_url, 0)
        open_store(store_url).close()

    def test_that_a_store_in_postgresql_belongs_to_no_host(self, postgres_url: str) -> None:
        with pytest.raises(StoreError, match="no host"):
            claim_store(postgres_url)
        with pytest.raises(StoreError, match="pollux db login"):
            share_store(postgres_url, "root")


class TestModes:
    def test_that_a_fifo_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pollux.db", 0o600)
        with pytest.raises(StoreError, match=r"pollux\.db is not a file"):
            open_store(f"sqlite:///{tmp_path}/pollux.db")

    @pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
    def test_that_a_file_open_to_everybody_is_refused(self, store_url: str, mode: int) -> None:
        path_of(store_url).chmod(mode)
        with pytest.raises(StoreError, match="everybody on this host") as refused:
            open_store(store_url)
        done = subprocess.run(str(refused.value).split("run: ")[1], shell=True, timeout=120, check=True)  # noqa: S602
        assert done.returncode == 0
        open_store(store_url).close()

    def test_that_a_group_must_exist_and_have_the_folder(self, store_url: str) -> None:
        with pytest.raises(UsageError, match="no group"):
            share_store(store_url, "no such group")
        group = grp.getgrgid(os.getegid()).gr_name
        path_of(store_url).parent.chmod(0o700)
        with pytest.raises(StoreError, match="folder") as refused:
            share_store(store_url, group)
        subprocess.run(str(refused.value).split("run: ")[1], shell=True, timeout=120, check=True)  # noqa: S602
        share_store(store_url, group)
        assert path_of(store_url).stat().st_mode & 0o777 == 0o660
        open_store(store_url).close()


AS_OTHER = """
import os, sys
user, group, url = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from pollux_slurm.store import open_store, sql_store
from pollux_slurm.store.access import engine, opening
from tests.store.builders import at, registration
os.setgroups([group]), os.setgid(65534), os.setuid(user)
store = open_store(url)
store.jobs.register([registration(user)], at=at(0))
print(len(store.jobs.all()))
sys.stdout.flush()
os._exit(0)   # the files beside the store stay
"""


@pytest.fixture
def public_folder(store_template: Path) -> Iterator[Path]:
    """Return a folder with a store that other users can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o755)
        shutil.copyfile(store_template, place / "pollux.db")
        (place / "pollux.db").chmod(0o600)
        yield place


def as_user(user: int, group: int, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_OTHER, str(user), str(group), f"sqlite:///{place / 'pollux.db'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@as_root
class TestUsers:
    def test_that_a_second_user_is_refused_with_the_owner_and_postgresql(self, public_folder: Path) -> None:
        nobody = pwd.getpwnam("nobody")
        done = as_user(nobody.pw_uid, nobody.pw_gid, public_folder)
        words = done.stderr.splitlines()[-1]
        assert "belongs to user root, and you are user nobody" in words
        assert "POLLUX_STORE_URL=postgresql://" in words
        assert "pollux db share GROUP" in words

    def test_that_the_users_of_a_group_share_it_if_so_configured(self, public_folder: Path) -> None:
        group = grp.getgrnam("users").gr_gid
        os.chown(public_folder, -1, group)
        public_folder.chmod(0o2770)
        share_store(f"sqlite:///{public_folder / 'pollux.db'}", "users")
        for turn, user in enumerate((12345, 12346, 12345, 12347)):
            done = as_user(user, group, public_folder)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split() == [str([1, 2, 2, 3][turn])]
        other_user = as_user(12348, 12348, public_folder)
        assert other_user.returncode != 0
        store = open_store(f"sqlite:///{public_folder / 'pollux.db'}")
        store.jobs.register([registration(1)], at=at(0))
        assert len(store.jobs.all()) == 4
        store.close()
