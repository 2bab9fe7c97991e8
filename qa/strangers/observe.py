"""What the daemon reports about each process, read once a second."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass, field

from tests.e2e.programs import http

_LINE = re.compile(
    r'^(?P<name>(?:torch|training)_[a-z_]+)\{(?P<labels>(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (?P<value>\S+)'
)
_ENDED = re.compile(r'^gpugauge_trainings_ended_total\{reason="(?P<reason>[^"]+)"\} (?P<value>\S+)', re.MULTILINE)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
# The labels by which a metric is divided; others have one value for each process.
_DIVIDED = {
    "torch_data_wait_seconds_total": "phase",
    "torch_phase_seconds_total": "phase",
    "torch_thread_seconds_total": "phase state",
    "torch_phase": "phase",
    "training_state": "state",
    "training_seconds_total": "state",
    "torch_step_source": "source",
}
_SINGLE = {
    *("torch_steps_total", "torch_batches_total", "torch_samples_total", "torch_tokens_total"),
    "torch_thread_runqueue_seconds_total",
}

# A process appears at most this long after its end: with the next tick and the next poll.
APPEARS = 10.0


@dataclass(frozen=True)
class Poll:
    """The values of one process at one time, by name and label; `before` and `after` enclose the request."""

    before: float
    after: float
    values: dict[tuple[str, str], float]

    def parts(self, name: str) -> dict[str, float]:
        """Return the values of a metric by its labels."""
        return {label: value for (metric, label), value in self.values.items() if metric == name}

    def value(self, name: str) -> float | None:
        """Return the value of a metric without further labels, None if it is absent."""
        return self.values.get((name, ""))

    @property
    def state(self) -> str | None:
        """Return the state of the verdict, None if it is absent."""
        return next((state for state, value in self.parts("training_state").items() if value == 1), None)


@dataclass
class Observer:
    """The polls by the label `process`, and the pid of each."""

    url: str
    polls: dict[str, list[Poll]] = field(default_factory=lambda: defaultdict(list))
    pids: dict[str, int] = field(default_factory=dict)
    ended: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def poll(self) -> None:
        """Read the metrics once. A daemon that does not answer is a poll less."""
        before = time.monotonic()
        status, body = http(self.url + "/metrics")
        after = time.monotonic()
        if status != 200:
            return
        text = body.decode()
        described = set[str]()
        values: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None:
                continue
            name, labels = found["name"], dict(_LABEL.findall(found["labels"]))
            process = labels.get("process", "")
            if name == "torch_process_info":
                self.pids[process] = int(labels["pid"])
                described.add(process)
            elif name in _DIVIDED:
                own = " ".join(labels.get(label, "") for label in _DIVIDED[name].split())
                values[process][name, own] = float(found["value"])
            elif name in _SINGLE:
                values[process][name, ""] = float(found["value"])
            elif name == "torch_parameter_elements":
                key = (name, "")
                values[process][key] = values[process].get(key, 0.0) + float(found["value"])
        # A session is dropped some minutes after its end, a moment before its verdict.
        for process in described & values.keys():
            of_process = values[process]
            previous = self.polls[process]
            if not previous or previous[-1].values != of_process or after - previous[-1].after < 20:
                previous.append(Poll(before, after, of_process))
        self.ended.append((after, {found["reason"]: round(float(found["value"])) for found in _ENDED.finditer(text)}))

    def of(self, pid: int, begin: float, end: float) -> list[str]:
        """Return the processes with this pid that appeared in this time or shortly after, in this order. The kernel may
        use a pid again.
        """
        processes = [process for process in self.polls if self.pids.get(process) == pid]
        return [process for process in processes if begin <= self.polls[process][0].after <= end + APPEARS]
