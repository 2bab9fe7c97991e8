"""Result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpugauge.verdict.causes import CAUSES

Level = Literal["pass", "warning", "failure", "skipped"]
_SEVERITIES: dict[Level, int] = {"pass": 0, "skipped": 0, "warning": 1, "failure": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cause` is the name of the same cause in the daemon's metrics, if there is one."""

    level: Level
    title: str
    found: str
    advice: str = ""
    cause: str | None = None

    @property
    def severity(self) -> int:
        """0 for pass and skipped, 1 for a warning, 2 for a failure."""
        return _SEVERITIES[self.level]


def ok(title: str, found: str) -> Finding:
    """Return a finding of level pass."""
    return Finding("pass", title, found)


def skipped(title: str, reason: str, advice: str = "") -> Finding:
    """Return a finding for a check that does not apply, or with what makes it possible."""
    return Finding("skipped", title, reason, advice)


def warning(title: str, found: str, advice: str = "", cause: str | None = None) -> Finding:
    """Return a warning: the GPU works, but not as well as it could. `advice` is by default that of the cause."""
    return Finding("warning", title, found, advice or _advice(cause), cause)


def failure(title: str, found: str, advice: str = "", cause: str | None = None) -> Finding:
    """Return a failure: PyTorch cannot use the GPU, or the process does not. `advice` is by default the cause's."""
    return Finding("failure", title, found, advice or _advice(cause), cause)


def _advice(cause: str | None) -> str:
    return CAUSES[cause].advice if cause else ""
