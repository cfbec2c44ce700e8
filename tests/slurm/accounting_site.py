"""A real slurmdbd, on a MariaDB of its own, for a sandbox: a site that limits GPUs by account and QOS.

MariaDB runs as an unprivileged user, in a folder below /tmp, reachable on the loopback interface by a
password made for it. The sandbox's slurmctld is started anew with the limits enforced.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import free_ports, search_path
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.system.process_control import ProcessRecord, spawn, stop_all
from tests.waiting import wait_until

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")


def missing_programs() -> list[str]:
    """Return what of `PROGRAMS` this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path(os.environ)) is None]


@contextlib.contextmanager
def accounting_of(sandbox: Sandbox) -> Iterator[CommandRunner]:
    """Give a running sandbox a slurmdbd for as long as the context lasts; yield what runs sacctmgr and all.

    The cluster is registered, `AccountingStorageEnforce` is `limits,qos`, and the calling user is in the
    account root.
    """
    folder = Path(tempfile.mkdtemp(prefix="pollux-dbd-", dir="/tmp"))
    folder.chmod(0o755)
    started: list[ProcessRecord] = []
    try:
        database_port, dbd_port = free_ports(2, random.Random())
        password = secrets.token_hex(16)
        started.append(_start_mariadb(folder, database_port, password))
        environ = {**sandbox.env, "PATH": search_path(os.environ)}
        wait_until(
            lambda: "ready for connections" in (folder / "mariadb.log").read_text(errors="replace"),
            timeout_s=120, what="MariaDB", every_s=0.1,
        )  # fmt: skip
        started.append(_start_slurmdbd(folder, sandbox, database_port, dbd_port, password, environ))
        runner = sandbox.runner(timeout_s=120)
        conf = sandbox.layout.slurm_conf
        before = conf.read_text(encoding="utf-8")
        conf.write_text(_with_accounting(before, sandbox, dbd_port), encoding="utf-8")
        wait_until(
            lambda: runner.run("sacctmgr", "-n", "show", "qos").exit_code == 0,
            timeout_s=120, what=f"slurmdbd to answer (see {folder}/slurmdbd.log)", every_s=0.2,
        )  # fmt: skip
        sacctmgr(runner, "add", "cluster", sandbox_name(before))
        sandbox.stop("slurmctld")
        sandbox.start("slurmctld").wait_idle(timeout_s=300)
        yield runner
    finally:
        stop_all(reversed(started), term_timeout_s=20.0)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def accounting_if_installed(sandbox: Sandbox) -> Iterator[CommandRunner | None]:
    """Give the sandbox a slurmdbd; where its programs are missing, say so and yield None."""
    if missing := missing_programs():
        print(f"without sacct: no {', '.join(missing)} here", flush=True)
        yield None
        return
    with accounting_of(sandbox) as runner:
        yield runner


def sacctmgr(runner: CommandRunner, *words: str) -> None:
    """Run sacctmgr without a question, and fail with its words."""
    answer = runner.run("sacctmgr", "-i", *words)
    assert answer.exit_code == 0, answer.error_text


def sandbox_name(slurm_conf: str) -> str:
    """Return ClusterName."""
    return next(line.partition("=")[2] for line in slurm_conf.splitlines() if line.startswith("ClusterName="))


def _start_mariadb(folder: Path, port: int, password: str) -> ProcessRecord:
    """Make a database that `slurm` may use with `password`, and start the server."""
    data, log = folder / "data", folder / "mariadb.log"
    data.mkdir(mode=0o700)
    log.touch(mode=0o666)
    path = search_path(os.environ)
    drop: list[str] = []
    if os.geteuid() == 0:
        user = next(name for name in ("nobody", "mysql") if _exists(name))
        shutil.chown(data, user)
        drop = [
            str(shutil.which("setpriv", path=path)),
            f"--reuid={user}",
            f"--regid={pwd.getpwnam(user).pw_gid}",
            "--clear-groups",
        ]
    install = shutil.which("mariadb-install-db", path=path)
    _run([*drop, str(install), "--no-defaults", f"--datadir={data}", "--skip-test-db",
          "--auth-root-authentication-method=normal"])  # fmt: skip
    grants = folder / "grants.sql"
    grants.write_text(
        "CREATE DATABASE slurm_acct_db;\n"
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';\n"
    )
    grants.chmod(0o644)
    server = [
        str(shutil.which("mariadbd", path=path)), "--no-defaults", f"--datadir={data}",
        f"--socket={data}/socket", f"--pid-file={data}/pid", f"--port={port}", "--bind-address=127.0.0.1",
        "--skip-name-resolve", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-log-file-size=16M", f"--init-file={grants}",
    ]  # fmt: skip
    return spawn("mariadb", [*drop, *server], environ={"PATH": path}, output=log)


def _start_slurmdbd(
    folder: Path, sandbox: Sandbox, database_port: int, port: int, password: str, environ: dict[str, str]
) -> ProcessRecord:
    conf, log = folder / "slurmdbd.conf", folder / "slurmdbd.log"
    conf.touch(mode=0o600)
    user = pwd.getpwuid(os.geteuid()).pw_name
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={sandbox.layout.munge_socket}\n"
        f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser={user}\n"
        f"LogFile={log}\nPidFile={folder}/slurmdbd.pid\n"
        "StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
        f"StoragePort={database_port}\nStorageUser=slurm\nStoragePass={password}\nStorageLoc=slurm_acct_db\n"
    )
    # It finds its own file beside slurm.conf.
    return spawn(
        "slurmdbd",
        [str(shutil.which("slurmdbd", path=environ["PATH"])), "-D"],
        environ={**environ, "SLURM_CONF": str(folder / "slurm.conf")},
        output=folder / "slurmdbd.out",
    )


def _with_accounting(slurm_conf: str, sandbox: Sandbox, port: int) -> str:
    lines = [line for line in slurm_conf.splitlines() if not line.startswith("AccountingStorageType=")]
    return "\n".join(
        [
            *lines,
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={port}",
            # Else its clients go to the machine's own munged.
            f"AccountingStoragePass={sandbox.layout.munge_socket}",
            "AccountingStorageTRES=gres/gpu",
            "AccountingStorageEnforce=limits,qos",
            "",
        ]
    )


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
