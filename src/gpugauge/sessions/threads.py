"""The time of a training thread by phase: on a CPU, waiting for one, and asleep. Read from /proc, beside its record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from gpugauge.sessions.session import ThreadTime

# In a backward pass on a GPU the training thread sleeps while a thread of autograd launches the kernels.
_AUTOGRAD = "pt_autograd"
_TRAINING = "training"
_MAX_THREADS = 1024  # of a process, among which they are looked for
_FIRST_PAUSE, _MAX_PAUSE = 5.0, 60.0  # seconds between two searches
_MOST_KEPT = 0.02  # seconds: the kernel adds the time of a running thread once in some milliseconds


class TrainingThread:
    """The seconds by phase of the training thread of a process, and of the threads of autograd that work for it."""

    def __init__(self, pid: int, root: str | Path = "/proc") -> None:
        self.seconds: Mapping[str, ThreadTime] = {}
        self._folder = Path(root, str(pid), "task")
        self._number = 0  # of the thread
        self._found: list[str] = []  # folders, that of the training thread first
        self._pause, self._searched = _FIRST_PAUSE, -_MAX_PAUSE
        self._counts: dict[str, tuple[float, float]] = {}  # of the last reading: seconds on a CPU, and waiting for one
        self._phases: Mapping[str, float] = {}
        self._ran = self._queued = 0.0  # seconds that are not added yet

    def read(self, number: int, phases: Mapping[str, float], now: float) -> None:
        """Add the time since the last reading. `number` is the thread's in its pid namespace, 0 if it is not known."""
        if number != self._number:
            self._number, self._found, self._pause = number, [], _FIRST_PAUSE
        if number and now >= self._searched + self._pause:
            self._search(now)
        counts = {folder: found for folder in self._found if (found := _counts(folder))}
        before, self._counts = self._counts, counts
        spent = {phase: value - self._phases.get(phase, 0.0) for phase, value in phases.items()}
        self._phases = phases
        known = counts.keys() & before.keys()
        if self._found and self._found[0] in known and counts[self._found[0]][0]:  # a kernel can leave them at 0
            self._ran += sum(max(0.0, counts[folder][0] - before[folder][0]) for folder in known)
            self._queued += sum(max(0.0, counts[folder][1] - before[folder][1]) for folder in known)
            self._add({phase: value for phase, value in spent.items() if value > 0.0})

    def _add(self, spent: Mapping[str, float]) -> None:
        """Add the seconds of an interval; sleep counts for other phases first, so that `training` is certain."""
        whole, active = sum(spent.values()), self._ran + self._queued
        share = min(1.0, whole / active) if active else 0.0  # several threads of autograd can run at the same time
        asleep = max(0.0, whole - share * active)
        others = whole - spent.get(_TRAINING, 0.0)
        found = dict(self.seconds)
        for phase, seconds in spent.items():
            slept = max(0.0, asleep - others) if phase == _TRAINING else seconds * min(1.0, asleep / others)
            ran = (seconds - slept) * self._ran / active if active else 0.0
            added = ran, max(0.0, seconds - slept - ran), slept
            found[phase] = found.get(phase, ThreadTime()).plus(added)
        self.seconds = found
        self._ran, self._queued = (min(_MOST_KEPT, (1.0 - share) * rest) for rest in (self._ran, self._queued))

    def _search(self, now: float) -> None:
        """Find the threads. Those of autograd start with the first backward pass."""
        self._pause = min(_MAX_PAUSE, 2.0 * self._pause) if self._found else _FIRST_PAUSE
        self._searched = now
        try:
            with os.scandir(self._folder) as entries:
                threads = [(entry.path, *_identity(entry.path)) for entry in islice(entries, _MAX_THREADS)]
        except OSError:
            threads = []
        training = [folder for folder, _, number in threads if number == self._number]
        autograd = [folder for folder, name, _ in threads if name.startswith(_AUTOGRAD) and folder not in training]
        self._found = [*training, *autograd] if training else []


def _identity(folder: str) -> tuple[str, int]:
    """Return the name of a thread, and its number in its own pid namespace; 0 if it has ended."""
    try:
        lines = Path(folder, "status").read_text(errors="replace").splitlines()
    except OSError:
        return "", 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return fields.get("Name", "").strip(), int(fields.get("NSpid", "0").split()[-1])


def _counts(folder: str) -> tuple[float, float] | None:
    """Return the seconds of a thread on a CPU and waiting for one; None if it has ended, or without such a file."""
    try:
        ran, queued, *_ = map(int, Path(folder, "schedstat").read_bytes().split())
    except (OSError, ValueError):
        return None
    return ran / 1e9, queued / 1e9
