"""What one check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpugauge.verdict.causes import CAUSES

Level = Literal["pass", "warning", "failure", "skipped"]
_EXIT_CODES: dict[Level, int] = {"pass": 0, "skipped": 0, "warning": 1, "failure": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `cause` is the name that the daemon gives to the same cause, where there is one."""

    level: Level
    title: str
    found: str
    advice: str = ""
    cause: str | None = None

    @property
    def severity(self) -> int:
        """0 for what is well or was not checked, 1 for a warning, 2 for a failure."""
        return _EXIT_CODES[self.level]


def ok(title: str, found: str) -> Finding:
    """Nothing is wrong."""
    return Finding("pass", title, found)


def skipped(title: str, why: str) -> Finding:
    """The check does not apply here."""
    return Finding("skipped", title, why)


def warning(title: str, found: str, advice: str = "", cause: str | None = None) -> Finding:
    """The GPU works, but not as well as it could. Without an advice of its own it gives the cause's."""
    return Finding("warning", title, found, advice or _advice(cause), cause)


def failure(title: str, found: str, advice: str = "", cause: str | None = None) -> Finding:
    """PyTorch cannot use the GPU, or the process does not. Without an advice of its own it gives the cause's."""
    return Finding("failure", title, found, advice or _advice(cause), cause)


def _advice(cause: str | None) -> str:
    return CAUSES[cause].advice if cause else ""


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the severity of the worst: 0, 1 or 2."""
    return max((finding.severity for finding in findings), default=0)
