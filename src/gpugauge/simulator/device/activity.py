"""Work on simulated GPUs, as pure functions of the second of the scenario, and loads with exact integrals, so that a
mean over any window needs no history.
"""

from __future__ import annotations

import hashlib
import math
import shlex
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from gpugauge.simulator.device.pipeline import Pipeline, observe

# Returns the busy seconds of a GPU from time 0 to a time, negative before 0.
Load: TypeAlias = Callable[[float], float]


def load(plain: Mapping[str, Any]) -> Load:
    """Return the load of plain data, which names a shape and its numbers (scenario/loadspec.py)."""
    return _SHAPES[plain["shape"]](**{key: value for key, value in plain.items() if key != "shape"})


def _constant(level: float) -> Load:
    return lambda t: level * t


def _square(high: float, low: float, period: float, duty: float) -> Load:
    on = duty * period
    whole = high * on + low * (period - on)

    def integral(t: float) -> float:
        periods, rest = divmod(t, period)
        if rest <= on:
            return periods * whole + high * rest
        return periods * whole + high * on + low * (rest - on)

    return integral


def _sine(low: float, high: float, period: float) -> Load:
    middle, swing, rate = (low + high) / 2, (high - low) / 2, 2 * math.pi / period
    return lambda t: middle * t - swing * math.sin(rate * t) / rate


def _points(points: Sequence[tuple[float, float]], repeat: bool) -> Load:
    times = [t for t, _ in points]
    areas = ((after - before) * (level + last) / 2 for (before, last), (after, level) in pairwise(points))
    sums = list(accumulate(areas, initial=0.0))

    def from_first(t: float) -> float:
        i = bisect_right(times, t) - 1
        start, level = points[max(i, 0)]
        past = t - start
        if not 0 <= i < len(points) - 1:
            return sums[max(i, 0)] + level * past
        end, later = points[i + 1]
        return sums[i] + past * (level + (later - level) / (end - start) * past / 2)

    period, at_zero = times[-1] if repeat else 0.0, from_first(0.0)
    whole = from_first(period) - at_zero

    def integral(t: float) -> float:
        periods, rest = divmod(t, period) if period else (0.0, t)
        return periods * whole + from_first(rest) - at_zero

    return integral


_SHAPES: dict[str, Callable[..., Load]] = {"constant": _constant, "square": _square, "sine": _sine, "points": _points}


class Rhythm:
    """A training compiles first; in each period it trains, evaluates, writes a checkpoint. Times are seconds."""

    def __init__(self, plain: Mapping[str, Any] | None, start: float, end: float) -> None:
        plain = plain or {"compiling": 0.0, "every": None, "evaluating": 0.0, "checkpointing": 0.0, "stalled_at": None}
        self._spins: bool = plain.get("spins", False)
        self.start, self._end = start, end
        self._begin: float = start + plain["compiling"]
        self._period: float = plain["every"] or float("inf")
        self._training: float = self._period - plain["evaluating"] - plain["checkpointing"]
        self._parts: tuple[tuple[str, float], ...] = (
            ("training", self._training),
            ("evaluating", plain["evaluating"]),
            ("checkpointing", plain["checkpointing"]),
        )
        self._stalled_at = float("inf") if plain["stalled_at"] is None else max(self._begin, plain["stalled_at"])

    def seconds(self, t: float) -> dict[str, float]:
        """Return the seconds in each phase until `t`; a stall counts as training."""
        t = max(self.start, min(t, self._end))
        found = self._until(min(t, self._stalled_at))
        found["training"] += max(0.0, t - self._stalled_at)
        return found

    def progress(self, t: float, phase: str = "training") -> float:
        """Return the seconds until `t` in which a phase made progress."""
        return self._until(max(self.start, min(t, self._end, self._stalled_at)))[phase]

    def spun(self, t: float) -> float:
        """Return the seconds until `t` in which a kernel only waited for another rank."""
        return max(0.0, min(t, self._end) - self._stalled_at) if self._spins else 0.0

    def moment(self, progress: float) -> float:
        """Return the first second at which the progress of the training is `progress`."""
        periods, rest = divmod(progress, self._training)
        if periods and not rest:
            periods, rest = periods - 1, self._training
        return self._begin + (periods * self._period if periods else 0.0) + rest

    def phase(self, t: float) -> tuple[str, float]:
        """Return the phase at `t` and the second of its start."""
        t = min(t, self._end, self._stalled_at)
        if t < self._begin:
            return "compiling", self.start
        periods, rest = divmod(t - self._begin, self._period)
        since = self._begin + (periods * self._period if periods else 0.0)
        for name, seconds in self._parts:
            if rest < seconds:
                return name, since
            since, rest = since + seconds, rest - seconds
        return "training", since

    def pauses(self, t: float) -> int:
        """Return the number of interruptions of the training that ended before `t`."""
        interrupted = sum(seconds for _, seconds in self._parts[1:])
        return int(max(0.0, min(t, self._end, self._stalled_at) - self._begin) // self._period) if interrupted else 0

    def _until(self, t: float) -> dict[str, float]:
        periods, rest = divmod(max(0.0, t - self._begin), self._period)
        found = {"compiling": min(t, self._begin) - self.start}
        for name, seconds in self._parts:
            found[name] = (periods * seconds if periods else 0.0) + min(rest, seconds)
            rest = max(0.0, rest - seconds)
        return found


def working(rhythm: Rhythm, busy: float, step: float, *, smooth: bool) -> Load:
    """Return the load of a training: busy for `busy` seconds of each `step`; with `smooth` spread evenly."""
    busy = min(busy, step)
    level = busy / step

    def integral(t: float) -> float:
        trained, evaluated = rhythm.progress(t), rhythm.progress(t, "evaluating")
        if smooth:
            return (trained + evaluated) * level + rhythm.spun(t)
        steps, rest = divmod(trained, step)
        return steps * busy + min(rest, busy) + evaluated * level + rhythm.spun(t)

    return integral


class Activity:
    """Work on a GPU between two seconds. Per busy second: `intensity` is the share of the full power, `traffic` of
    memory time, `engines` of each engine's, `link` of the PCIe bandwidth into the GPU (None: the usual bytes).
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.start: float = plain["start"]
        self.end: float = float("inf") if plain["end"] is None else plain["end"]
        self.intensity: float = plain["intensity"]
        self.traffic: float = plain["traffic"]
        self.sm_active: float = 0.2 + 0.8 * self.intensity
        self.tensor_active: float = 0.6 * self.intensity
        self.link: float | None = None
        self.pinned = True
        self.pipeline = Pipeline(**plain["pipeline"]) if plain.get("pipeline") else None
        self.rhythm = Rhythm(plain.get("phases"), self.start, self.end)
        self._load: Load | None = load(plain["load"]) if plain["load"] else None
        if self.pipeline:
            self._derive()
        # The share of the time of each engine per busy second, by the name of its sample ring.
        self.engines: dict[str, float] = {"gpu": 1.0, "memory": self.traffic, **plain["engines"]}
        self._before = self._load(self.start) if self._load else 0.0

    def _derive(self) -> None:
        assert self.pipeline
        shown = observe(self.pipeline)
        busy = shown.own_busy
        self._load = working(self.rhythm, busy * shown.step, shown.step, smooth=bool(self.pipeline.other))
        self.intensity = min(1.0, shown.own_power / busy)
        self.sm_active = min(1.0, shown.own_sm_active / busy)
        self.tensor_active = min(1.0, shown.tensor_active / busy)
        self.link, self.pinned = shown.transfer / busy, self.pipeline.pinned

    def alive(self, t: float) -> bool:
        """Return whether the activity runs at `t`."""
        return self.start <= t < self.end

    def spun(self, t: float) -> float:
        """Return the busy seconds in which a kernel only waited for another rank."""
        return self.rhythm.spun(t) if self._load else 0.0

    def busy(self, t: float) -> float:
        """Return the busy seconds of a GPU from the start of the activity to `t`."""
        if self._load is None or t <= self.start:
            return 0.0
        return self._load(min(t, self.end)) - self._before


class Pod:
    """A pod, `namespace/name`, with one container. Its uid and the id of the container follow from the name."""

    container = "main"

    def __init__(self, name: str) -> None:
        self.namespace, _, self.name = name.partition("/")
        self.uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.{self.namespace}.pod"))
        self.container_id = hashlib.sha256(self.uid.encode()).hexdigest()

    @property
    def cgroup(self) -> str:
        """The cgroup of its container, as the kubelet and containerd name it."""
        slice_ = f"kubepods-pod{self.uid.replace('-', '_')}.slice"
        return f"/kubepods.slice/{slice_}/cri-containerd-{self.container_id}.scope"


class Process:
    """A process of a job (scenario/model.py) on some of its GPUs: `rank` of `ranks` processes."""

    def __init__(self, plain: Mapping[str, Any], gpus: tuple[int, ...], rank: int, ranks: int) -> None:
        self.gpus, self.rank, self.ranks = gpus, rank, ranks
        self.pid: int = plain["pid"] + rank
        self.container_pid: int | None = None if plain["container_pid"] is None else plain["container_pid"] + rank
        self.activity = Activity(plain)
        self.works_on = gpus if plain["works_on"] is None else tuple(plain["works_on"])
        self._idle = Activity({**plain, "load": None, "pipeline": None})
        self.kind: str = plain["kind"]
        self.memory: int | None = plain["memory"]
        self.instance: int | None = plain["instance"]
        self.hook: bool = plain["hook"]
        self.uid: int = plain["uid"]
        self.cpus: str | None = plain["cpus"]
        self.swapped: int = plain["swapped"]
        self.command: list[str] = shlex.split(plain["command"])
        self.cgroup: str = plain["cgroup"]
        self.environment: dict[str, str] = plain["environment"]
        self.pod = Pod(plain["pod"]) if plain["pod"] else None
        if self.pod:
            self.cgroup = self.pod.cgroup
            self.environment = {"HOSTNAME": self.pod.name[:63], **self.environment}

    @property
    def launcher(self) -> int | None:
        """The pid of the process that started the ranks; None for a single process."""
        first = self.pid - self.rank
        return first - 1 if self.ranks > 1 and first > 1 else None

    def on(self, gpu: int) -> Activity:
        """Return the activity on one of its GPUs."""
        return self.activity if gpu in self.works_on else self._idle
