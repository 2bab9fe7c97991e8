"""`gpugauge track`: the metrics of a job in MLflow or TensorBoard, written beside the training, never in it."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click
from prometheus_client.parser import text_string_to_metric_families

from gpugauge.cli.common import duration, fail, url_option
from gpugauge.exposition.trainings import END, ENERGY, HELD, LOST, MAX_BYTES, MEMORY, SECONDS, STEPS
from gpugauge.report import kept, render
from gpugauge.web.client import RequestError, request

_TIMEOUT_SECONDS = 10.0
_WORDS = "report"
_ENDED = 2  # times that no process was seen, one after the other: the daemon may just have begun again
_Key = tuple[str, ...]


class Sums(NamedTuple):
    """The values of a job at a time, by process or GPU; an ended process keeps its last ones for some minutes."""

    values: Mapping[str, Mapping[_Key, float]]

    @classmethod
    def read(cls, url: str, query: str) -> Sums:
        """Return what the daemon has. Raises RequestError."""
        body = request(f"{url.rstrip('/')}/metrics?{query}", timeout_seconds=_TIMEOUT_SECONDS, max_bytes=32 * MAX_BYTES)
        wanted = {HELD, LOST, MEMORY, SECONDS, STEPS, ENERGY, END}
        found: defaultdict[str, dict[_Key, float]] = defaultdict(dict)
        try:
            for family in text_string_to_metric_families(body.decode()):
                for sample in family.samples if wanted & {family.name, f"{family.name}_total"} else ():
                    key = (
                        sample.labels.get("cause", ""),
                        sample.labels.get("process", ""),
                        sample.labels.get("uuid", ""),
                    )
                    found[sample.name][key] = sample.value
        except ValueError:
            raise RequestError(f"{url} does not answer as gpugauge does") from None
        return cls(found)

    @property
    def runs(self) -> bool:
        """Whether a process of the job has not ended."""
        ended = {process for _, process, _ in self.values.get(END, ())}
        return any(process not in ended for _, process, _ in self.values.get(SECONDS, ()))

    @property
    def step(self) -> int | None:
        """The steps of the process with most."""
        return max((int(steps) for steps in self.values.get(STEPS, {}).values()), default=None)

    def since(self, before: Sums, seconds: float) -> dict[str, float]:
        """Return the means of a time by name; what is not known is absent."""

        def rises(name: str) -> dict[_Key, float]:
            known = before.values.get(name, {})
            return {k: max(0.0, v - known[k]) for k, v in self.values.get(name, {}).items() if k in known}

        held, joules, lost = sum(rises(HELD).values()), rises(ENERGY), defaultdict[str, float](float)
        for (cause, *_), amount in rises(LOST).items():
            lost[cause] += amount
        found = {"memory_gib": sum(memory.values()) / (1 << 30)} if (memory := self.values.get(MEMORY)) else {}
        if held:
            found["load"] = max(0.0, 1 - sum(lost.values()) / held)
            found |= {f"lost/{cause}": amount / held for cause, amount in lost.items()}
        return found | ({"power_watts": sum(joules.values()) / seconds} if joules and seconds else {})


class _Mlflow:
    """A run of MLflow, by its client."""

    def __init__(self, run: str, prefix: str) -> None:
        self._client, self._run, self._prefix = _module("mlflow", "mlflow").MlflowClient(), run, prefix
        self._metric = importlib.import_module("mlflow.entities").Metric

    def write(self, values: Mapping[str, float], now: float, step: int) -> None:
        made = [self._metric(self._prefix + name, value, int(now * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=made)

    def close(self, text: str) -> None:
        self._client.log_text(self._run, text, f"{self._prefix}{_WORDS}.txt")


class _TensorBoard:
    """An event file of its own in the folder of a run."""

    def __init__(self, folder: Path, prefix: str) -> None:
        writer = _module("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event
        self._text = importlib.import_module("tensorboard.plugins.text.summary_v2").text_pb
        self._writer, self._prefix = writer.EventFileWriter(str(folder), filename_suffix=".gpugauge"), prefix

    def write(self, values: Mapping[str, float], now: float, step: int) -> None:
        event = self._event(wall_time=now, step=step)
        for name, value in values.items():
            event.summary.value.add(tag=self._prefix + name, simple_value=value)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self, text: str) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), summary=self._text(self._prefix + _WORDS, text)))
        self._writer.close()


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        fail(2, f"{package} cannot be loaded: {error}")


@click.command("track", short_help="Write load and lost time into MLflow or TensorBoard.")
@click.option("--job", metavar="NAME", help="The workload_job of the training.")
@click.option("--process", metavar="ID", help="In place of a job: the process of the metrics.")
@url_option
@click.option("--mlflow", metavar="RUN_ID", help="Write into this run; MLFLOW_TRACKING_URI names its server.")
@click.option("--tensorboard", type=click.Path(path_type=Path), metavar="FOLDER", help="Write an event file here.")
@click.option("--prefix", default="gpugauge/", show_default=True, help="First part of the names.")
@click.option("--interval", default="15s", show_default=True, callback=duration, help="Time between two entries.")
def command(
    job: str | None,
    process: str | None,
    url: str,
    mlflow: str | None,
    tensorboard: Path | None,
    prefix: str,
    interval: float,
) -> None:
    """Write load, lost time by cause, memory and power of a training on this node into a tracker, until it ends.

    It runs beside the training, and follows it by the daemon's metrics; its last entry is the report.
    """
    if bool(job) == bool(process):
        raise click.UsageError("give --job NAME or --process ID")
    trackers: list[_Mlflow | _TensorBoard] = [
        *([_Mlflow(mlflow, prefix)] if mlflow else []),
        *([_TensorBoard(tensorboard, prefix)] if tensorboard else []),
    ]
    if not trackers:
        raise click.UsageError("give --mlflow RUN_ID or --tensorboard FOLDER")
    query = urlencode({"job": job} if job else {"process": process})
    begin = time.time()
    before, last, processes, ended = None, begin, set[str](), 0
    while ended < _ENDED:
        try:
            now, seen = time.time(), Sums.read(url, query)
            processes |= {process for _, process, _ in seen.values.get(SECONDS, ())}
            ended = ended + 1 if processes and not seen.runs else 0
            if before is not None and (values := seen.since(before, now - last)):
                step = seen.step
                for tracker in trackers:
                    tracker.write(values, now, int(now - begin) if step is None else step)
            before, last = seen, now
        except Exception as error:  # noqa: BLE001  (a tracker raises what it likes; the next values may arrive)
            click.echo(f"gpugauge: {error}", err=True)
        if ended < _ENDED:
            time.sleep(interval)
    try:
        made = kept.of(kept.Kept(url), processes)
        text = render.as_text(render.blocks(made)) if made else ""
    except RequestError as error:
        text = f"{error}\n"
    for tracker in trackers:
        tracker.close(text)
