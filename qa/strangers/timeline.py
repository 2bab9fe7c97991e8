"""What one process measured itself, derived from the lines of its recorder: counts, waits, and the phases over time."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Interval = tuple[float, float, frozenset[str]]


def read(path: Path) -> list[list[Event]]:
    """Return the events of a process, one list for each program that it ran (os.execv begins another)."""
    programs: list[list[Event]] = []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["e"] == "begin" or not programs:
            programs.append([])
        programs[-1].append(event)
    # The event that opened the file is older than the begin.
    return [sorted(events, key=lambda event: float(event["t"])) for events in programs]


_WAITS = ("ask", "got", "stop")


@dataclass(frozen=True)
class Waits:
    """Seconds by mode of the stepping thread's waits for batches: declared or in a DataLoader, and others. `delayed`:
    for how long of both it had no CPU, which may have been before or after what the hook sees of a wait. `undecided`:
    those of the first kind of which a killed process could not show what they were for, since no step came after them,
    and those of a program whose steps are not seen, in another phase by its modes, where they are `possible`.
    """

    known: dict[str, float]
    other: dict[str, float]
    delayed: dict[str, float]
    undecided: dict[str, float]
    possible: dict[str, float]


class Timeline:
    """The truth about one process. Times are CLOCK_MONOTONIC."""

    def __init__(self, pid: int, events: Sequence[Event], ended: float) -> None:
        self.pid = pid
        self.begin = float(events[0]["t"])
        self.started = min([self.begin, *(event["started"] for event in events if "started" in event)])
        self.ended = max(ended, float(events[-1]["t"]))
        self.steps = [float(event["t"]) for event in events if event["e"] == "step"]
        threads = Counter(event["thread"] for event in events if event["e"] == "step")
        threads = threads or Counter(event["thread"] for event in events if event["e"] == "got")
        self.rounds = max(threads.values(), default=0)  # steps of one thread
        self.thread = threads.most_common(1)[0][0] if threads else events[0]["thread"]
        self.beside_main = self.thread not in {
            event.get("main", self.thread) for event in events if event["e"] == "begin"
        }
        self.events = [event for event in events if event["thread"] == self.thread]
        # Until then, the thread that imported torch is taken for the one that trains.
        before = min(self.steps, default=self.ended)
        self.early = [e for e in events if e["thread"] != self.thread and float(e["t"]) < before and e["e"] in _WAITS]
        self.early_batches = sum(event["e"] == "got" for event in self.early)
        self.got = [float(event["t"]) for event in self.events if event["e"] == "got"]
        self.unknown = {name for event in events if event["e"] == "unknown" for name in event["names"]}
        # Only a backward pass can show that a thread trains which did not import torch and makes no step that is seen.
        self.hidden = False
        self.batches = len(list(self._seen()))
        self.hidden = self.beside_main and "steps" in self.unknown
        if self.hidden:
            self.batches, self.early_batches = 0, self.batches + self.early_batches
        self.parameters: tuple[int, ...] | None = None
        self.ends: list[tuple[float, tuple[str, ...]]] = []
        self.samples, self.tokens = 0, 0
        for event in events:
            if event["e"] == "parameters":
                self.parameters = tuple(event["allowed"])
            elif event["e"] == "end":
                self.ends.append((float(event["t"]), tuple(event["reasons"])))
            elif event["e"] == "ticked":
                self.samples += event["samples"]
                self.tokens += event["tokens"]
        watched = [float(event["t"]) for event in events if event["e"] == "watched"]
        self.progress = sorted(self.steps + self.got)
        self.first_progress = min(self.progress, default=ended)
        self.visible = sorted(self._visible())
        self.first = min(self.visible, default=None)
        # A phase that the program enters opens no session, but counts from then on.
        self.session = min([*watched, *self.visible[:1]], default=None)
        entered = [float(event["t"]) for event in self.events if event["e"] == "enter"]
        self.counted = min([*watched, *self.visible[:1], *entered], default=None)
        self.intervals = list(self._intervals())

    def _visible(self) -> Iterator[float]:
        """Yield the times of the steps and batches that can be seen from outside the program."""
        if "steps" not in self.unknown:
            yield from self.steps
        yield from self._seen()

    def _seen(self) -> Iterator[float]:
        """Yield the times at which batches of known loaders arrived."""
        known = False
        for event in () if self.hidden else self.events:
            if event["e"] == "ask":
                known = event["known"]
            elif event["e"] == "got" and known:
                yield float(event["t"])

    def batch_work(self, steps: int) -> tuple[int, int] | None:
        """Return the samples and tokens of the training batches that were taken before so many steps; None if one of
        them does not show its size.
        """
        end = self.steps[steps - 1] if 0 < steps <= len(self.steps) else self.begin
        # A loader that does not show its samples, and broke after its first batch, before any other, trained nothing.
        first = [event for event in self.events if event["e"] in {"ask", "got", "stop", "step"}][:4]
        broken = float(self.events[0]["t"])
        if [event["e"] for event in first] == ["ask", "got", "ask", "stop"] and first[1].get("samples") is None:
            broken = float(first[3]["t"])
        taken = [
            event
            for event in self.events
            if broken <= float(event["t"]) <= end
            and (event["e"] == "used" or (event["e"], event.get("mode")) == ("got", "training"))
        ]
        if any(event.get("samples") is None for event in taken):
            return None
        return sum(int(event["samples"]) for event in taken), sum(int(event.get("tokens", 0)) for event in taken)

    def early_wait(self) -> float:
        """Return the seconds of the waits that count before the training thread is known."""
        times = [float(event["t"]) for event in self.early]
        return sum(b - a for a, b in zip(times[::2], times[1::2], strict=False))

    def steps_at(self, time: float) -> int:
        """Return the number of steps until then."""
        return bisect_right(self.steps, time)

    def waits(self) -> Waits:
        """Return the waits of the stepping thread."""
        known: dict[str, float] = defaultdict(float)
        other: dict[str, float] = defaultdict(float)
        delayed: dict[str, float] = defaultdict(float)
        undecided: dict[str, float] = defaultdict(float)
        possible: dict[str, float] = defaultdict(float)
        inside: list[str] = []
        killed = not self.ends or "killed" in self.ends[-1][1]
        last = self.steps[-1] if self.steps else self.begin
        asked: Event | None = None
        for event in self.events:
            if event["e"] == "ask":
                asked = event
            elif event["e"] in {"got", "stop"} and asked is not None:
                delayed[asked["mode"]] += event.get("delayed", 0.0) - asked.get("delayed", 0.0)
                seconds = float(event["t"]) - float(asked["t"])
                (known if asked["known"] and not self.hidden else other)[asked["mode"]] += seconds
                if other_phase := [
                    phase for phase in inside if phase not in {"", asked["mode"]} and "steps" in self.unknown
                ]:
                    possible[other_phase[-1]] += seconds
                if other_phase or (killed and last <= float(asked["t"])):
                    undecided[asked["mode"]] += seconds
                asked = None
            elif event["e"] == "enter":
                inside.append("" if event["certain"] else event["phase"])
            elif event["e"] == "leave" and inside:
                inside.pop()
        if asked is not None:
            (known if asked["known"] and not self.hidden else other)[asked["mode"]] += self.ended - float(asked["t"])
        return Waits(dict(known), dict(other), dict(delayed), dict(undecided), dict(possible))

    def longest_step(self) -> float:
        """Return the longest time between two steps or batches, of those below 1.5 seconds."""
        gaps = [b - a for a, b in zip(self.progress, self.progress[1:], strict=False)]
        return max((gap for gap in gaps if gap < 1.5), default=0.0)

    def quiet(self, before: float) -> float:
        """Return the seconds since the last step or batch at that time; since the begin if there was none."""
        index = bisect_right(self.progress, before)
        return before - (self.progress[index - 1] if index else self.begin)

    def phases_between(self, start: float, end: float) -> set[str]:
        """Return all phases that are true at some time between these."""
        return {phase for a, b, phases in self.intervals if a <= end and b >= start for phase in phases}

    def _intervals(self) -> Iterator[Interval]:
        """Yield the time in pieces with the phases that are true in each by docs/hook.md; several where it is open."""
        base = frozenset({"starting"})
        declared: list[frozenset[str]] = []
        asked: Event | None = None
        last = self.begin
        # A framework waits where the program cannot measure it.
        hidden = frozenset({"loading"} if "waits" in self.unknown else ())
        # Until the first step of another thread, nothing shows that it is the one that trains. The first batch of a
        # hidden loader comes some time before the first step. A program that fetches without gradients is starting.
        unsure = self.beside_main or hidden or "first" in self.unknown
        early = hidden | frozenset({"starting", "training"} if unsure else ())
        stepped = False
        for event in self.events:
            time, kind = float(event["t"]), event["e"]
            yield last, time, _current(base, declared, asked) | (hidden if stepped else early)
            stepped = stepped or (kind == "step" and not self.hidden)
            last = time
            if kind == "ask":
                asked = event
            elif kind == "got":
                seen = asked is not None and asked["known"]
                asked, base = None, frozenset({event["mode"]}) | (frozenset() if seen else base)
            elif kind == "stop":
                asked = None
                if "evaluating" in base:  # until the next training batch or step, nothing shows that it is over
                    base = frozenset({"evaluating", "training"})
            elif kind in {"pass", "step"}:
                base = frozenset({"training"}) | (base if "steps" in self.unknown else frozenset())
            elif kind == "enter":
                phase = frozenset({event["phase"]})
                declared.append(phase if event["certain"] else phase | base | {"training"})
            elif kind == "leave" and declared:
                declared.pop()
        yield last, self.ended, _current(base, declared, asked) | hidden


def _current(base: frozenset[str], declared: list[frozenset[str]], asked: Event | None) -> frozenset[str]:
    now = declared[-1] if declared else base
    if asked is None:
        return now
    if asked["known"] and not declared:
        return frozenset({"loading", "starting"}) if "starting" in base else frozenset({"loading"})
    return now | {"loading"}
