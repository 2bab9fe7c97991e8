"""Trainings that have ended: the reason in words, what to do about it, and the shares of their whole time."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from gpugauge.metric import Family, HistogramValue
from gpugauge.status.history import by_labels
from gpugauge.wire.shares import shares, with_waits

MAX_LISTED = 32  # the newest; a sweep of short trainings may leave thousands
FAILURES = frozenset({"error", "out_of_memory", "killed"})
"""Reasons for which a training did not do what its user wanted."""

# By reason: the state in at most 13 characters, and what to do.
_STATES = {
    "finished": "finished",
    "error": "error",
    "out_of_memory": "out of memory",
    "interrupted": "interrupted",
    "killed": "killed",
}
_WORDS = {"rejected": "its connection was closed for invalid messages", "other": "the reason is not known"}
_ADVICE = {
    "out_of_memory": "smaller batches, gradient accumulation or activation checkpointing need less memory",
    "killed": "if nobody killed it, look for the kernel's out-of-memory killer: dmesg --human | grep -i killed",
}

Entry = dict[str, Any]

# What is no longer true of a process that has ended.
GONE: Entry = {
    "state": "ended",
    "level": "none",
    "phase": None,
    "samples_per_second": None,
    "tokens_per_second": None,
    "runbook": None,
    "evidence": None,
    "limited_by": None,
    "limited_by_words": None,
    "limited_by_ratio": None,
    "undecidable": [],
    "data_wait_ratio": None,
    "gain_words": None,
    "changes": [],
}


def end_words(reason: str, exit_code: str = "", signal_number: str = "") -> str:
    """Return why a training ended, such as "killed by signal 9 (SIGKILL)"; "" while the reason is not settled."""
    words = _WORDS.get(reason) or _STATES.get(reason, "")
    if reason == "killed" and signal_number.isdecimal():
        name = ""
        with suppress(ValueError):
            name = f" ({signal.Signals(int(signal_number)).name})"
        return f"killed by signal {signal_number}{name}"
    if reason == "killed":
        return "killed, or it crashed"
    return f"{words}, exit code {exit_code}" if exit_code not in {"", "0"} and words else words


class Endings:
    """What is exported about the ends of trainings."""

    def __init__(self, found: Mapping[str, Family]) -> None:
        ends = by_labels(found.get("training_end_timestamp_seconds"), "process")
        self.times = {process: at for (process,), at in ends.items()}
        """Unix time of the end by process."""
        family = found.get("training_end_info")
        self._reasons = {
            labels["process"]: labels
            for values, _ in (family.samples if family else ())
            if (labels := dict(zip(family.metric.labels if family else (), values, strict=True)))
        }
        self._phases = _by_process(found.get("torch_phase_seconds_total"))
        self._waits = _by_process(found.get("torch_data_wait_seconds_total"))
        self._local = by_labels(found.get("torch_local_work_seconds_total"), "process")
        self._steps = _sums(found.get("torch_step_duration_seconds"))

    def newest(self, processes: Collection[str]) -> list[str]:
        """Return those that ended last, the last one first."""
        return sorted(processes, key=lambda process: -self.times[process])[:MAX_LISTED]

    def of(self, process: str) -> Entry:
        """Return the fields of a process that has ended."""
        found = self._reasons.get(process, {})
        reason, number = found.get("reason", ""), found.get("signal", "")
        advice = _ADVICE.get(reason)
        if reason == "killed" and number not in {"", str(int(signal.SIGKILL))}:
            advice = None
        return {
            **GONE,
            "ended": self.times[process],
            "end_reason": reason or None,
            "end_words": end_words(reason, found.get("exit_code", ""), number) or None,
            "state_words": _STATES.get(reason, "ended"),
            "advice": advice,
            "step_shares": self._shares(process),
        }

    def _shares(self, process: str) -> dict[str, float]:
        waits, steps, local = self._waits.get(process, {}), self._steps.get(process), self._local.get((process,))
        peers = None if steps is None or local is None else max(0.0, steps - local)
        return shares(with_waits(self._phases.get(process, {}), waits), waits.get("training"), peers)


def _by_process(family: Family | None) -> dict[str, dict[str, float]]:
    result: dict[str, dict[str, float]] = {}
    for (process, phase), seconds in by_labels(family, "process", "phase").items():
        result.setdefault(process, {})[phase] = seconds
    return result


def _sums(family: Family | None) -> dict[str, float]:
    if family is None:
        return {}
    place = family.metric.labels.index("process")
    return {labels[place]: value.total for labels, value in family.samples if isinstance(value, HistogramValue)}
