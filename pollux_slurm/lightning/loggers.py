"""CSVLogger, TensorBoardLogger and MLFlowLogger over moves: the same version, and no row lost or twice."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger

from pollux_slurm.lightning.private_parts import purge_from, resume_run, set_version


def logger_state(loggers: Iterable[Logger], *, next_step: int, is_rank_0: bool) -> dict[str, Any]:
    """Return what loggers need to go on: versions, the next step to log, and the rows of CSV files.

    A logger of another kind has None: W&B finds its run by the environment. MLflow's version is its run's id.
    """
    state: dict[str, Any] = {"versions": [], "rows": [], "next_step": next_step}
    for logger in loggers:
        is_known = isinstance(logger, (CSVLogger, TensorBoardLogger, MLFlowLogger))
        state["versions"].append(logger.version if is_known else None)
        rows = None
        if isinstance(logger, CSVLogger) and is_rank_0:
            logger.save()
            rows = len(_read(_metrics_file(logger))[1])
        state["rows"].append(rows)
    return state


def resume_loggers(loggers: Iterable[Logger], saved: Mapping[str, Any], *, is_rank_0: bool) -> None:
    """Let loggers go on where the checkpoint was written. Call it before they are used."""
    for logger, version, rows in zip(loggers, saved["versions"], saved["rows"], strict=False):
        if version is None:
            continue
        if isinstance(logger, TensorBoardLogger):
            set_version(logger, version)
            # TensorBoard then hides what was logged after the checkpoint: it is logged again.
            purge_from(logger, saved["next_step"])
        elif isinstance(logger, MLFlowLogger):
            resume_run(logger, version)
        elif isinstance(logger, CSVLogger):
            set_version(logger, version)
            if is_rank_0 and rows is not None:
                _resume_csv(logger, rows)


def _metrics_file(logger: CSVLogger) -> Path:
    return Path(logger.log_dir) / "metrics.csv"


def _read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the header and the rows of a CSV file; nothing where there is none."""
    if not path.is_file():
        return [], []
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    rows = list(reader)
    return list(reader.fieldnames or ()), rows


def _resume_csv(logger: CSVLogger, num_rows: int) -> None:
    """Keep the first rows of the file. Lightning's writer deletes the file of an experiment that exists."""
    path = _metrics_file(logger)
    keys, rows = _read(path)
    if not keys:
        return
    path.unlink()
    logger.experiment.metrics_keys = keys
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=keys)
        writer.writeheader()
        writer.writerows(rows[:num_rows])
