"""What `pollux init` makes of its answers: a settings file, a store, and the commands to type next."""

from __future__ import annotations

import enum
import json
import os
import shlex
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.config import DEFAULT_PATH, SlurmConfig, load_config, own_path, own_state_dir
from pollux_slurm.errors import ConfigError, SlurmError, UsageError

SUBMISSION = "submission"
"""The answer for checkpoints below the directory of each submission."""

_SANDBOX_NAME = "sandbox"
_ANSWER_S = 5.0


class Users(str, enum.Enum):
    """Whose jobs pollux is to serve."""

    MACHINE = "machine"
    OWN = "own"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What `pollux init` finds: `cluster` is the Slurm that answers, `one_host` whether it is all here."""

    cluster: str | None
    one_host: bool
    is_root: bool

    @property
    def likely_users(self) -> Users:
        if self.cluster is None or self.cluster == _SANDBOX_NAME:
            return Users.MACHINE
        return Users.CLUSTER if self.is_root else Users.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of a user; without a `checkpoints` folder they go below each submission's directory."""

    users: Users
    store_url: str
    checkpoints: str | None
    shadow: bool
    starts_sandbox: bool


def look_around(environ: Mapping[str, str]) -> Surroundings:
    """Ask Slurm, for a few seconds, which cluster this is and on which hosts."""
    from pollux_slurm.slurm import connect

    is_root = os.geteuid() == 0
    try:
        slurm = connect(SlurmConfig(command_timeout_s=_ANSWER_S), environ)
        name, nodes = slurm.settings().get("ClusterName", ""), slurm.snapshot().nodes
    except SlurmError:
        return Surroundings(cluster=None, one_host=True, is_root=is_root)
    here = {"localhost", socket.gethostname().partition(".")[0]}
    one_host = all(node.hostname.partition(".")[0] in here for node in nodes)
    return Surroundings(cluster=name, one_host=one_host, is_root=is_root)


def settings_file(users: Users, environ: Mapping[str, str], named: Path | None) -> Path:
    """Return the file to write: the named one, the user's own, or the site's. Raises `UsageError`."""
    if named is not None or environ.get("POLLUX_CONFIG"):
        return Path(named or environ["POLLUX_CONFIG"]).absolute()
    if users is Users.CLUSTER:
        if os.geteuid() != 0:
            raise UsageError(f"{DEFAULT_PATH} is written by root; without root: pollux init --for own")
        return DEFAULT_PATH
    own = own_path(environ)
    if own is None:
        raise UsageError("HOME is not set: name the settings file with --config FILE")
    return own.absolute()


def likely_store(users: Users, found: Surroundings, environ: Mapping[str, str]) -> str | None:
    """Return the store to suggest, None where only a PostgreSQL server will do whose address is not known."""
    if users is Users.CLUSTER:
        name = socket.getfqdn()
        return f"postgresql://{socket.gethostname() if name.startswith('localhost') else name}/pollux"
    if users is Users.OWN and not found.one_host:
        return None
    return str(own_state_dir(environ) / "pollux.db")


def store_url(given: str, users: Users, found: Surroundings) -> str:
    """Return the URL of a path or URL; raises `ConfigError` or `UsageError` where it cannot serve."""
    from sqlalchemy.engine import make_url

    from pollux_slurm.store.access.secrets_in_url import holds_password
    from pollux_slurm.store.access.url import StoreUrl, parse_store_url

    if "://" not in given:
        path = Path(given).expanduser().absolute()
        given = str(StoreUrl(url=make_url("sqlite://"), path=path))
    if parse_store_url(given).path is None:
        if users is Users.CLUSTER and holds_password(given):
            raise UsageError("all users read the site's settings: put the password into ~/.pgpass of each")
        return given
    if users is Users.CLUSTER:
        raise UsageError("SQLite serves one user on one host; for a cluster write postgresql://HOST/DATABASE")
    if users is Users.OWN and not found.one_host:
        raise UsageError(
            "SQLite serves one host, and this cluster has others; write postgresql://HOST/DATABASE"
        )
    return given


def checkpoints_root(given: str, users: Users) -> str | None:
    """Return the folder for checkpoints, None for below each submission; raises `UsageError`."""
    if given == SUBMISSION:
        return None
    if not given.startswith(("/", "~")):
        raise UsageError(f"{given}: write a folder that begins with / or ~, or {SUBMISSION}")
    if users is Users.CLUSTER and "%u" not in given and not given.startswith("~/"):
        raise UsageError(f"{given}: each user needs a folder there: write %u for the user's name")
    return given


def settings_text(answers: Answers) -> str:
    """Return the settings file; it has only what differs from the defaults."""
    daemon = [f"shadow = {str(answers.shadow).lower()}"]
    if answers.users is Users.CLUSTER:
        daemon.insert(0, 'jobs = "all"')
    else:
        # The port of the metrics is the site's daemon's.
        daemon[:0] = [*(['jobs = "own"'] if answers.users is Users.OWN else []), 'metrics_listen = "off"']
    lines = [
        "# Made by pollux init. Every key: pollux config example. What holds: pollux config check.",
        "[store]",
        f"url = {_toml(answers.store_url)}",
        "",
        "[daemon]",
        *daemon,
    ]
    if answers.starts_sandbox:
        # One looks at a sandbox: rounds follow each other quickly, and its GPUs have no links between them.
        lines += ["interval_s = 10", "", "[moves]", "in_place = true", 'gpu_types_without_nvlink = ["t4"]']
    if answers.checkpoints is not None:
        lines += ["", "[checkpoints]", f"root = {_toml(answers.checkpoints)}"]
    return "\n".join(lines) + "\n"


def write_settings(file: Path, text: str, users: Users) -> None:
    """Write the file whole or not at all, after it was read back; only the site's is readable by others."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".pollux-", suffix=".toml")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            load_config({}, path=temporary)
            temporary.chmod(0o644 if users is Users.CLUSTER else 0o600)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigError(f"{file} cannot be written: {error}") from None


def next_commands(
    answers: Answers, *, file: Path, environ: Mapping[str, str], slurm_answers: bool, store_made: bool
) -> list[tuple[str, str]]:
    """Return the commands to type next, each with what it does."""
    from pollux_slurm.store.access.url import parse_store_url

    steps: list[tuple[str, str]] = []
    if file not in (own_path(environ), DEFAULT_PATH) and not environ.get("POLLUX_CONFIG"):
        steps.append((f"export POLLUX_CONFIG={shlex.quote(str(file))}", "make this shell read the file"))
    url = parse_store_url(answers.store_url).url
    if not store_made:
        command = f"sudo -u postgres pollux db init --store postgresql:///{url.database}"
        steps.append((command, "make the store, on the server of PostgreSQL, unless it is made"))
    if answers.users is Users.CLUSTER:
        daemons = shlex.quote(str(url.set(drivername="postgresql", username="pollux", password=None)))
        return [
            *steps,
            (
                f"sudo -u pollux POLLUX_STORE_URL={daemons} pollux doctor --from-nodes 4",
                "check store, Slurm and nodes, with the daemon's login",
            ),
            ("pollux config unit > /etc/systemd/system/pollux-daemon.service", "write the service"),
            ("systemctl enable --now pollux-daemon", "start it"),
        ]
    if answers.starts_sandbox:
        steps.append(('eval "$(pollux sandbox env)"', "point a shell at the private cluster"))
    if answers.users is Users.OWN:
        steps.append(("pollux doctor --from-nodes 2", "check store, Slurm and nodes"))
    if answers.starts_sandbox or slurm_answers:
        return [
            *steps,
            ("pollux daemon", "decide and move, in a terminal of its own"),
            ("pollux sbatch --max-gpus 4 train.sbatch", "submit an adaptive job"),
        ]
    return [
        *steps,
        ("pollux rehearse -- python train.py", "move a script for real on this machine"),
        ("pollux run -- python train.py", "train on this machine"),
    ]


def _toml(text: str) -> str:
    # JSON's string is TOML's, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
