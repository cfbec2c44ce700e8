"""The wings of one anchor, and the anchor itself, as jobs of Slurm: submit, look, hold, cancel, requeue."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pollux_slurm.config import Config
from pollux_slurm.errors import SlurmCommandError, SlurmError, SlurmReadError
from pollux_slurm.launch.anchor.seen_job import SEEN_FORMAT, SeenJob, parse_seen_job
from pollux_slurm.launch.submit.wing_request import wing_environ, wing_script
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.job_commands import error_of_result, is_unknown_job
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.job_json import state_of
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment, parse_wing_comment
from pollux_slurm.slurm.sbatch.request import sigterm_lead_s


class WingJobs:
    """Submits wings of the anchor whose batch script has `environ`. `order_file` is passed to each."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        client: SlurmClient,
        runner: CommandRunner,
        config: Config,
        order_file: Path,
        cwd: Path,
        token_sha256: str,
    ) -> None:
        self._environ, self._client, self._runner, self._config = environ, client, runner, config
        self._order_file, self._cwd, self._token_sha256 = order_file, cwd, token_sha256
        self.anchor_id, self.node = environ["SLURM_JOB_ID"], environ.get("SLURMD_NODENAME", "")

    def submit(
        self,
        request: Sequence[str],
        *,
        restart_count: int,
        plan: int,
        number: int,
        time_limit_s: float | None,
        begin_s: float = 0.0,
    ) -> str:
        """Submit a wing with the options `request`; `number` tells it from others in its name.

        Raises `SlurmError`.
        """
        terms = WingTerms(
            anchor_id=self.anchor_id, restart_count=restart_count, plan=plan, token_sha256=self._token_sha256
        )
        options = [
            *request,
            *self._of_anchor(request),
            f"--comment={encode_wing_comment(terms)}",
            f"--job-name={self._environ.get('SLURM_JOB_NAME', 'job')}+{number}",
            f"--chdir={self._cwd}",
            f"--signal=TERM@{sigterm_lead_s(time_limit_s)}",
            "--no-requeue",
            "--open-mode=append",
            "--export=ALL",
        ]
        if (output := _file_of(1)) is not None:
            options.append(f"--output={output}")
        if (error := _file_of(2)) is not None and error != output:
            options.append(f"--error={error}")
        if time_limit_s is not None:
            options.append(f"--time={max(math.ceil(time_limit_s / 60), 1)}")
        if begin_s > 0:
            options.append(f"--begin=now+{math.ceil(begin_s)}")
        script = wing_script(self._order_file, self._config.templates.dir)
        return self._client.submit(script, options, (), wing_environ(self._environ))

    def _of_anchor(self, request: Sequence[str]) -> list[str]:
        """Return the options that a wing has from its anchor where its request does not name them."""
        given = {option.removeprefix("--").partition("=")[0] for option in request}
        # Anchors that stand apart are in another partition than their wings.
        names = ("account", "qos", *(() if self._config.moves.anchor_partition else ("partition",)))
        values = {name: self._environ.get(f"SLURM_JOB_{name.upper()}") for name in names}
        return [f"--{name}={value}" for name, value in values.items() if value and name not in given]

    def look(self, job_ids: Iterable[str]) -> dict[str, SeenJob]:
        """Return the anchor and those of its wings that Slurm still knows. Raises `SlurmError`."""
        wanted = {self.anchor_id, *job_ids}
        answer = self._runner.run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={','.join(sorted(wanted))}",
            f"--format={SEEN_FORMAT}",
        )
        if answer.exit_code != 0:
            if is_unknown_job(answer):
                return {}
            raise error_of_result(answer, SlurmReadError)
        seen = (parse_seen_job(line) for line in answer.stdout.splitlines())
        return {number: job for number, job in seen if number in wanted}

    def is_node_drained(self) -> bool:
        """Whether an administrator wants jobs to leave the anchor's node. False where that is not known."""
        with contextlib.suppress(SlurmError):
            answer = self._runner.run(
                "sinfo", "--noheader", "--all", f"--nodes={self.node}", "--Format=StateLong:40"
            )
            return answer.exit_code == 0 and "drain" in answer.stdout
        return False

    def hold(self, job_id: str) -> None:
        """Keep a wing that waits from starting. Raises `SlurmError`."""
        self._client.hold(job_id)

    def release(self, job_id: str) -> None:
        """Let a held wing start. Raises `SlurmError`."""
        self._client.release(job_id)

    def cancel(self, job_ids: Iterable[str], warn: Callable[[str], None]) -> None:
        """Cancel wings; what cannot be cancelled now ends by itself."""
        for number in job_ids:
            try:
                self._client.cancel(number)
            except SlurmError as error:
                warn(f"job {self.anchor_id}: its wing {number} cannot be cancelled: {error}")

    def left_behind(self) -> list[str]:
        """Return the wings that an earlier run of this anchor has left. Raises `SlurmError`."""
        answer = self._runner.run(
            "squeue", "--noheader", "--me", "--states=all", "--Format=JobID:20,State:20,Comment:300"
        )
        if answer.exit_code != 0:
            raise error_of_result(answer, SlurmReadError)
        found = []
        for line in answer.stdout.splitlines():
            # The Comments of the owner's other jobs may have any content, lines of their own included.
            number, _, rest = line.partition(" ")
            state, _, comment = rest.strip().partition(" ")
            terms = parse_wing_comment(comment.strip())
            if (
                terms is not None
                and (terms.anchor_id, terms.token_sha256) == (self.anchor_id, self._token_sha256)
                and number.isdecimal()
                and not state_of((state,), f"job {number}").is_over
            ):
                found.append(number)
        return found

    def give_up_place(self, *, begin_s: float) -> None:
        """Requeue the anchor itself, to start again `begin_s` from now. Raises `SlurmError`."""
        answer = self._runner.run("scontrol", "requeue", self.anchor_id)
        if answer.exit_code != 0:
            raise error_of_result(answer, SlurmCommandError)
        # Without this it starts in two minutes.
        with contextlib.suppress(SlurmError):
            self._runner.run(
                "scontrol", "update", f"JobId={self.anchor_id}", f"StartTime=now+{math.ceil(begin_s)}"
            )


def _file_of(descriptor: int) -> Path | None:
    """Return the regular file that a descriptor of this process is open to."""
    try:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return None
    return path if path.is_file() else None
