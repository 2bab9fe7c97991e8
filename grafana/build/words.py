"""States in words, and what stands in place of a value that is not known, so that it never looks like a healthy one."""

from __future__ import annotations

from collections.abc import Sequence

from gpugauge.artifacts.rules import states as rules
from gpugauge.artifacts.rules.promql import JOB_LABELS
from gpugauge.artifacts.rules.recording import ANSWERING, ARMED, HELD, NOW, PROBLEM
from grafana.build.queries import COUNT, Expr, Scope, keys, recorded

GOOD, USED, UNKNOWN, WARNING, UNSEEN, CRITICAL = rules.LEVELS
Line = rules.Line
GREY = "#8e8e8e"
_COLORS = {GOOD: "green", USED: "green", UNKNOWN: GREY, WARNING: "orange", UNSEEN: "orange", CRITICAL: "red"}

# What a number is in place of a value; values are never negative.
NO_RULES, NO_DATA, JUDGING, NOT_SEEN, ENDED, NO_TRAINING, ON_CPU, NO_GPU, NO_REPORT = map(str, range(-1, -10, -1))
SEVERAL_NODES, SEVERAL_JOBS = "-10", "-11"
CODES = {
    NO_RULES: ("no rules loaded", "orange"),
    NO_DATA: ("no data", "orange"),
    JUDGING: ("being judged", GREY),
    NOT_SEEN: ("not known", GREY),
    ENDED: ("ended", GREY),
    NO_TRAINING: ("no training", GREY),
    ON_CPU: ("on the CPU", "orange"),
    NO_GPU: ("holds no GPU", GREY),
    NO_REPORT: ("not reported", GREY),
    SEVERAL_NODES: ("choose a cluster", "orange"),
    SEVERAL_JOBS: ("several jobs", "orange"),
}
# The rules record one for the exporters of each scrape job.
RULES = f"count ({recorded(ANSWERING)})"
_EXPORTERS = f"count ({Scope().select('gpugauge_build_info')})"
# In the first minutes of the exporters there can be no recorded series.
_YOUNG = f"({_EXPORTERS} unless on () {_EXPORTERS[:-1]} offset 5m))"
_JOB = keys(*JOB_LABELS)
# Trainings whose load is not judged yet.
_JUDGING = (
    f"count (({recorded(HELD)} > 0 or on ({_JOB}) {recorded(NOW)}) "
    f"unless on ({_JOB}) ({recorded(ARMED)} or on ({_JOB}) {recorded(PROBLEM)}))"
)
_MISSING = ((JUDGING, f"({_YOUNG} unless on () {RULES})"), (NO_RULES, f"({_EXPORTERS} unless on () {RULES})"))


# The reasons that stand in a table in place of its lines.
REASON_NAMES = {text: ("", "orange") for text, color in CODES.values() if color == "orange"} | {
    "no exporter is scraped": ("", "orange")
}


def states(by: str, *lines: Line) -> Expr:
    """Return the first state that applies, as the rules' function of that name."""
    return Expr(rules.states(by, *lines), COUNT)


def names(*lines: Line) -> dict[str, tuple[str, str]]:
    """Return the colours of the words of states, for a column."""
    return {f"~{line.words}".replace("$1", ".*"): ("", _COLORS[line.level]) for line in lines}


def coded(expr: Expr, *codes: tuple[str, str]) -> Expr:
    """Return a value without labels, or the first code whose series are there, or that of no data."""
    return expr.then("{}" + _codes((*codes, (NO_DATA, "vector(0)"))))


def _codes(codes: Sequence[tuple[str, str]]) -> str:
    return "".join(f"\nor count ({when}) * 0 - {code[1:]}" for code, when in codes)


def of_one(expr: Expr, several: tuple[str, str], *codes: tuple[str, str]) -> Expr:
    """Return a value without labels, not if it would be the sum of several things of one name."""
    return coded(expr.then(f"({{}} unless on () {several[1]})"), several, *codes)


def of_trainings(expr: Expr, *codes: tuple[str, str]) -> Expr:
    """Return a recorded value about judged trainings, or why there is none."""
    return coded(expr, *codes, (JUDGING, _JUDGING), (NO_TRAINING, RULES), *_MISSING)


def counted(expr: Expr, *codes: tuple[str, str]) -> Expr:
    """Return a number of recorded series, 0 if the rules record none, or why it is not known."""
    return coded(expr.then(f"{{}}{_codes(codes)}\nor 0 * {RULES}"), *_MISSING)


def reason(label: str) -> Expr:
    """Return a series whose label gives the reason for missing recorded series; nothing if they are there."""
    every = [(code, when) for code, when in _MISSING] + [(NO_DATA, f"(vector(0) unless on () {_EXPORTERS})")]
    lines = (f'label_replace(0 * {when}, "{label}", "{CODES[code][0]}", "", "")' for code, when in every)
    return Expr("(" + "\nor on () ".join(lines) + ")", "")


def or_reason(expr: Expr, label: str) -> Expr:
    """Return recorded series, or the reason for which they are missing."""
    return expr.then(f"{{}}\nor {reason(label)}")
