"""Two real users of this machine, for tests of what one must not be able to do to the other."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.agent_api.token_hashes import hash_token

SLEEP = "#!/bin/sh\nwhile :; do sleep 0.2; done\n"


ALL = "pollux_slurm.cli.app, scipy, sqlalchemy"
HOLD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
port, number = map(int, sys.argv[1:])
held = [socket.create_connection(("127.0.0.1", port), timeout=300) for _ in range(number)]
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account that was created for the test; `env` is the environment for the sandbox."""

    name: str
    user_id: int
    home: Path
    python: tuple[str, ...]
    env: dict[str, str]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in their home."""
        return subprocess.run(
            command, input=stdin, user=self.name, group=self.name, extra_groups=[], cwd=self.home,
            env=self.env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def pollux(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.python, "-m", "pollux_slurm", *arguments)

    @contextlib.contextmanager
    def holding_connections(self, port: int, number: int) -> Iterator[None]:
        """Open connections to a port of this machine as this user, and say nothing."""
        holder = subprocess.Popen(
            [*self.python, "-c", HOLD, str(port), str(number)],
            user=self.name, group=self.name, extra_groups=[], cwd=self.home, env=self.env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield
            holder.communicate(timeout=300)

    def submit(self, *options: str, token: str) -> str:
        terms = JobTerms(token_sha256=hash_token(token), user_id=self.user_id, min_gpus=1, max_gpus=4)
        done = self.run(
            "sbatch", "--parsable", "--output=/dev/null", "--requeue", "--cpus-per-gpu=1",
            "--mem-per-gpu=100", f"--comment={encode_comment('', terms)}", *options, stdin=SLEEP,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextlib.contextmanager
def two_users(surroundings: Mapping[str, str], *, imports: str = ALL) -> Iterator[tuple[User, User]]:
    """Make two real users with homes of their own, and remove them afterwards; skip where that cannot be.

    `surroundings` are variables that all their commands get, `imports` what their Python must have.
    """
    if os.geteuid() != 0 or shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("only root can make users for the test")
    made: list[User] = []
    names: list[str] = []
    try:
        for _ in range(2):
            name = f"pollux-{secrets.token_hex(4)}"
            subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True, timeout=300)
            names.append(name)
            home = Path("/tmp") / name
            home.mkdir(mode=0o700)
            entry = pwd.getpwnam(name)
            os.chown(home, entry.pw_uid, entry.pw_gid)
            env = {
                **surroundings,
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            python = made[0].python if made else _python(name, env, imports)
            made.append(User(name=name, user_id=entry.pw_uid, home=home, python=python, env=env))
        yield made[0], made[1]
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, timeout=300)
            shutil.rmtree(Path("/tmp") / name, ignore_errors=True)


def _python(name: str, env: dict[str, str], imports: str) -> tuple[str, ...]:
    """Return a Python that the user can run with this one's packages: this one may be in root's home."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, system):
        try:
            done = subprocess.run(
                [python, "-c", f"import {imports}"],
                user=name, extra_groups=[], cwd="/", env=env, capture_output=True, timeout=300, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            return (python,)
    pytest.skip(f"no Python {sys.version_info.major}.{sys.version_info.minor} that another user can run")
