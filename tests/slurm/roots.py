"""Other releases of Slurm on this machine: Debian's own packages, each unpacked into a root of its own.

`POLLUX_TEST_SLURM_ROOTS` names the folder that keeps them (some 400 MB each, made once). Nothing is installed
on the machine: a command of such a release is a small script that enters the root in a mount namespace of its
own, so that no mount outlives it. That takes root. The mirror is the one that this machine's apt uses.

    python -m tests.slurm.roots          # make those that are missing, print where their commands are
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOTS_VARIABLE = "POLLUX_TEST_SLURM_ROOTS"
# The prefix that somebody installed Slurm 25.11 into, built from source; PySlurm 25.11 is importable then.
BUILT_VARIABLE = "POLLUX_TEST_SLURM_25_11"
# Which suite of Debian holds which release.
SUITES = {"24.11": "trixie", "26.05": "sid"}

# With the libraries that this machine's Python needs, which jobs run in there.
_PACKAGES = "slurmctld,slurmd,slurm-client,munge,libffi8,libsqlite3-0,libssl3t64"
_PROGRAMS = {
    "sbin": ("slurmctld", "slurmd"),
    "bin": ("sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue", "srun"),
}
_SHARED = ("/dev", "/proc", "/sys", "/tmp")
_MAKE_TIMEOUT_S = 1200
_MARKER = ".slurm-root"
# Everything that a sandbox's files name lies below /tmp, under the same name on both sides. So do the folders
# of this Python and this checkout.
_ENTER = """\
#!/bin/sh
# Run {program} of Slurm {release}; the mounts are this process's own and go with it.
[ -e /{marker} ] && exec {program} "$@"  # a job's script is in there already
exec unshare --mount --propagation private /bin/sh -c '
  for folder in {shared}; do
    mkdir -p "$0$folder" && mount --rbind "$folder" "$0$folder" || exit 126
  done
  exec chroot "$0" "$@"' {root} {program} "$@"
"""


def search_path(release: str, environ: Mapping[str, str]) -> str:
    """Return the PATH under which the commands are those of `release`.

    Raises `NoRootError` where it is not here and may not or cannot be had.
    """
    path = environ.get("PATH", os.defpath)
    if release in SUITES:
        return f"{commands_of(release, environ)}{os.pathsep}{path}"
    prefix = environ.get(BUILT_VARIABLE)
    if not prefix:
        raise NoRootError(
            f"no Slurm {release}: build it, PySlurm with it, and put its prefix into {BUILT_VARIABLE}"
        )
    return os.pathsep.join([f"{prefix}/bin", f"{prefix}/sbin", path])


class NoRootError(Exception):
    """Why there is no such release here, and what to do about it."""


def commands_of(release: str, environ: Mapping[str, str]) -> Path:
    """Return the folder with the commands of `release`, its root made first if need be.

    Raises `NoRootError` where that may not or cannot be done.
    """
    folder = environ.get(ROOTS_VARIABLE)
    if not folder:
        raise NoRootError(
            f"{ROOTS_VARIABLE} names no folder for other releases of Slurm; run: make test-slurm-versions"
        )
    if os.geteuid() != 0:
        raise NoRootError(f"Slurm {release} lies in a root of its own, and only root may enter it")
    place = Path(folder).resolve() / release
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = place / "root"
        if not root.is_dir():
            _make(root, SUITES[release])
        _write_commands(place / "bin", root, release)
    found = _release_in(place / "bin")
    if not found.startswith(f"{release}."):
        raise NoRootError(
            f"Debian {SUITES[release]} holds Slurm {found}, not {release}: remove {place}, or keep it"
        )
    return place / "bin"


def _make(root: Path, suite: str) -> None:
    tool = shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if tool is None:
        raise NoRootError("debootstrap is missing; run: apt-get install debootstrap")
    partial = root.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    argv = [
        tool,
        "--force-check-gpg",
        "--variant=minbase",
        f"--include={_PACKAGES}",
        suite,
        str(partial),
        _mirror(),
    ]
    log = root.with_name("debootstrap.log")
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                argv, stdout=output, stderr=output, env=_with_proxy(), timeout=_MAKE_TIMEOUT_S, check=False
            )
    except subprocess.TimeoutExpired:
        raise NoRootError(f"debootstrap {suite} took longer than {_MAKE_TIMEOUT_S} s; see {log}") from None
    if done.returncode != 0:
        raise NoRootError(f"debootstrap {suite} ended with exit code {done.returncode}; see {log}")
    shutil.rmtree(partial / "var/cache/apt", ignore_errors=True)
    partial.rename(root)


def _mirror() -> str:
    """Return the Debian archive that this machine's apt uses."""
    if shutil.which("apt-get") is None:
        raise NoRootError("this machine has no apt, whose mirror the packages would come from")
    answer = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(LABEL) $(SITE)", "Identifier: Packages"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    sites = [line.partition(" ")[2] for line in answer.stdout.splitlines() if line.startswith("Debian http")]
    if not sites:
        raise NoRootError("this machine's apt knows no Debian mirror (or run: apt-get update)")
    return sites[0]


def _with_proxy() -> dict[str, str]:
    answer = subprocess.run(
        ["apt-config", "shell", "proxy", "Acquire::http::Proxy"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    proxy = re.fullmatch(r"proxy='([^']*)'", answer.stdout.strip())
    known = {"http_proxy": proxy[1]} if proxy is not None and proxy[1] not in ("", "DIRECT") else {}
    return known | dict(os.environ)


def _write_commands(folder: Path, root: Path, release: str) -> None:
    folder.mkdir(exist_ok=True)
    (root / _MARKER).touch()
    # Jobs are on this machine: its name resolves, and an SQLite store is of the same host.
    for name in ("etc/hosts", "etc/machine-id"):
        if Path("/", name).is_file():
            shutil.copy(Path("/", name), root / name)
    for place, programs in _PROGRAMS.items():
        for name in programs:
            script = folder / name
            text = _ENTER.format(
                program=f"/usr/{place}/{name}",
                release=release,
                root=shlex.quote(str(root)),
                marker=_MARKER,
                shared=" ".join([*_SHARED, *_python_folders()]),
            )
            if not script.exists() or script.read_text() != text:
                script.write_text(text)
                script.chmod(0o755)


def _python_folders() -> list[str]:
    """Return the folders that a job needs to run this Python and this checkout, but for the system's own."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2]}
    return sorted(
        shlex.quote(str(folder))
        for folder in wanted
        if not any(folder.is_relative_to(system) for system in ("/usr", "/tmp"))
    )


def _release_in(commands: Path) -> str:
    answer = subprocess.run(
        [commands / "slurmctld", "-V"], capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r"[0-9]+\.[0-9]+\.[0-9]+", answer.stdout)
    if found is None:
        message = " ".join((answer.stdout + answer.stderr).split())[:200]
        raise NoRootError(f"{commands}/slurmctld cannot be run here: {message}")
    return found[0]


def main() -> int:
    """Make every root that is missing; 1 if one cannot be made."""
    failed = False
    for release in SUITES:
        try:
            print(f"{release} {commands_of(release, os.environ)}", flush=True)
        except NoRootError as error:
            print(f"{release}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
