# SPDX-License-Identifier: Apache-2.0
"""Loggers, which take the numbers of each step, and a run's metrics.jsonl handed to one.

    step = penstock.trainer(..., log=penstock.loggers.TensorBoard("runs/first"))
    python -m penstock.loggers RUN --tensorboard FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .errors import PenstockError
from .files import parse_json, read_text


@runtime_checkable
class Logger(Protocol):
    """A trainer's log= takes any object with these two."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step by name; `step` counts from 1."""

    def close(self) -> None:
        """Nothing more comes."""


class JsonLines:
    """Each step a line of JSON, {"step": 1, "loss": 2.5}, appended to a file. What is not finite is null. A run that goes on from a checkpoint may write
    a step again: its last line counts. All loggers here begin with the first step, as of several processes rank 0 alone has one."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._path, self._file = Path(path), None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Throws PenstockError for a file that cannot be written."""
        text = json.dumps({"step": step, **{name: value if math.isfinite(value) else None for name, value in values.items()}})
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self._path, "a", encoding="utf-8")
            self._file.write(text + "\n")
            self._file.flush()
        except OSError as error:
            raise PenstockError(f"cannot write {self._path}: {error.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class TensorBoard:
    """Scalars in a folder that `tensorboard --logdir` shows, or by a SummaryWriter, which stays open where it was made."""

    def __init__(self, folder: str | os.PathLike | Any) -> None:
        self._writer, self._folder = (folder, None) if hasattr(folder, "add_scalar") else (None, os.fspath(folder))
        if self._folder is not None:
            self._make = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make(self._folder)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._folder is not None and self._writer is not None:
            self._writer.close()


class WandB:
    """A run of Weights & Biases: `run`, which stays open, or a new one, wandb.init(**settings), which close() finishes."""

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self._run, self._settings = run, None if run is not None else settings
        if self._settings is not None:
            self._wandb = _imported("wandb")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is None:
            self._run = self._wandb.init(**self._settings)
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        if self._settings is not None and self._run is not None:
            self._run.finish()


class MLflow:
    """Metrics of MLflow's active run, or of a new one, mlflow.start_run(**settings), which close() ends."""

    def __init__(self, **settings: Any) -> None:
        self._mlflow, self._settings, self._own = _imported("mlflow"), settings, False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._mlflow.active_run() is None:
            self._mlflow.start_run(**self._settings)
            self._own = True
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()


class Several:
    """Loggers that all get the same."""

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = [logger_of(each) for each in loggers]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for each in self._loggers:
            each.log(step, values)

    def close(self) -> None:
        for each in self._loggers:
            each.close()


def logger_of(log: Any) -> Logger:
    """Makes a logger of what a user gave as log=: one already, a SummaryWriter or another object with its add_scalar, or several of these. Throws PenstockError."""
    if isinstance(log, (list, tuple)):
        return Several(log)
    if hasattr(log, "add_scalar"):
        return TensorBoard(log)
    if not isinstance(log, Logger):
        raise PenstockError(f"log is a {type(log).__name__}, which has no log(step, values) and close(), and no add_scalar",
                            hint='penstock.loggers.TensorBoard("runs/first"), .JsonLines("log.jsonl"), .WandB(run), .MLflow()')
    return log


def replay(run: str | os.PathLike, logger: Logger) -> int:
    """Hands all steps of a run's metrics.jsonl, or of a file like it, to a logger, the last line of each step; how many steps there are.

    Of a list, such as peak_bytes of each actor, each number has the name with its place, "peak_bytes/0". Throws PenstockError for a line that
    is none; one that is being written is left out.
    """
    path = Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = read_text(path).split("\n")
    except OSError as error:
        raise PenstockError(f"cannot read {path}: {error.strerror}", hint="the folder that penstock train --out names has a metrics.jsonl") from None
    by_step: dict[int, dict[str, float]] = {}
    for number, line in enumerate(lines[:-1], 1):
        value = parse_json(line, f"{path}:{number}: the line")
        step = value.pop("step", None) if isinstance(value, dict) else None
        if type(step) is not int:
            raise PenstockError(f"{path}:{number}: the line has no step", hint='{"step": 1, "loss": 2.5}')
        by_step[step] = _numbers(value)
    for step in sorted(by_step):
        logger.log(step, by_step[step])
    return len(by_step)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    flat = {}
    for name, value in values.items():
        flat |= {f"{name}/{i}": each for i, each in enumerate(value)} if isinstance(value, list) else {name: value}
    return {name: value for name, value in flat.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}


def _imported(name: str, package: str = "") -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = package or name
        raise PenstockError(f"{package} is not installed", hint=f"pip install {package}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m penstock.loggers", description="Hands what a run has logged to a tool that shows it.")
    parser.add_argument("run", help="the folder of a run of penstock train, or a file of lines of JSON")
    parser.add_argument("--tensorboard", metavar="FOLDER", required=True, help="where TensorBoard's events are written")
    given = parser.parse_args(arguments)
    try:
        logger = TensorBoard(given.tensorboard)
        try:
            steps = replay(given.run, logger)
        finally:
            logger.close()
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{steps} steps in {given.tensorboard}: tensorboard --logdir {given.tensorboard}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
