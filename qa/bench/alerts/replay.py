"""The replay of a story by a real promtool, and the firing alerts parsed from its output."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qa.bench.alerts.story import Story, StoryError

Labels = Mapping[str, str]
_FIRING = 'ALERTS{alertstate="firing"}'
_MOMENT = re.compile(r"^    expr: .*, time: (\w+),")
_SERIES = re.compile(r'\{__name__="ALERTS", (.*?)\} 1E\+00')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS = {"h": 3600, "m": 60, "s": 1}
_NOT_IDENTITY = frozenset({"alertname", "alertstate", "severity"})


@dataclass(frozen=True)
class Run:
    """An alert that fired from minute `begin` to minute `end`, both included."""

    alert: str
    labels: Labels
    begin: int
    end: int


def replay(story: Story, groups: Mapping[str, Any], promtool: str) -> list[Run]:
    """Return the alerts that the rules of `groups` fire over the story. Raises StoryError."""
    # The test expects no firing alert, because promtool prints the alerts where the expectation fails.
    test = {
        "interval": f"{story.interval}s",
        "input_series": [{"series": name, "values": values} for name, values in story.series.items()],
        "promql_expr_test": [{"expr": _FIRING, "eval_time": f"{minute}m"} for minute in range(story.minutes)],
    }
    # Prometheus evaluates groups in no defined order: in that of the file, the series of another group are one
    # evaluation old. promtool has one interval for all groups: that of the slowest.
    order = [group["name"] for group in groups["groups"]]
    interval = max([60, *(_seconds(group.get("interval", "")) for group in groups["groups"])])
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{interval}s",
        "group_eval_order": order,
        "tests": [test],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rules.yaml").write_text(dump(groups))
        (folder / "test.yaml").write_text(dump(tests))
        command = [promtool, "test", "rules", str(folder / "test.yaml")]
        environment = {**os.environ, "GOGC": "400"}  # memory costs less here than collecting garbage
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        except OSError as error:
            raise StoryError(f"{promtool}: cannot be run: {error.strerror}; it comes with Prometheus") from None
    printed = done.stdout + done.stderr
    firing = dict(_firing(printed))
    if done.returncode and not firing:
        raise StoryError(f"{story.name}: promtool refused it: {' '.join(printed.split())[:500]}")
    return _runs(firing)


def dump(tree: object) -> str:
    """Return the tree as YAML; libyaml's emitter is many times as fast as Python's."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(tree, Dumper=dumper, width=1 << 30)
    return text


def _firing(printed: str) -> Iterable[tuple[int, list[tuple[tuple[str, str], ...]]]]:
    """Yield each minute with firing alerts, and the labels of these alerts."""
    minute: int | None = None
    found: list[tuple[tuple[str, str], ...]] = []
    for line in printed.splitlines():
        moment = _MOMENT.match(line)
        if moment:
            if minute is not None:
                yield minute, found
            minute, found = _seconds(moment[1]) // 60, []
        found += [tuple(_LABEL.findall(labels)) for labels in _SERIES.findall(line)]
    if minute is not None:
        yield minute, found


def _seconds(text: str) -> int:
    """Return the seconds of a duration in Prometheus' notation, such as 1h30m."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def _runs(firing: Mapping[int, list[tuple[tuple[str, str], ...]]]) -> list[Run]:
    open_runs: dict[tuple[tuple[str, str], ...], tuple[int, int]] = {}
    done: list[Run] = []

    def close(labels: tuple[tuple[str, str], ...]) -> None:
        begin, end = open_runs.pop(labels)
        by_name = dict(labels)
        identity = {key: value for key, value in by_name.items() if key not in _NOT_IDENTITY}
        done.append(Run(by_name["alertname"], identity, begin, end))

    for minute in sorted(firing):
        for labels in firing[minute]:
            if labels in open_runs and open_runs[labels][1] < minute - 1:
                close(labels)
            open_runs[labels] = (open_runs.get(labels, (minute, minute))[0], minute)
    for labels in list(open_runs):
        close(labels)
    return sorted(done, key=lambda run: (run.begin, run.alert, sorted(run.labels.items())))
