"""The advice on a process: what to change, with the expected gain. Every view shows the rows of this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpugauge.metric import Family, Value
from gpugauge.status.words import IDLE_ADVICE, RUN_ADVICE, STALLED_ADVICE, cause_phrase
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.gain import Gain
from gpugauge.verdict.mistakes import MISTAKES, Mistake

Labels = Mapping[str, str]
_GAIN = "training_expected_speedup"


@dataclass(frozen=True, slots=True)
class Advice:
    """One change. `topic` is the row of the table; `cause` is what the change removes, if the verdict has a name for
    it; `gain` is None if it is not known.
    """

    cause: str | None
    topic: str
    change: str
    gain: Gain | None = None

    def plain(self) -> dict[str, Any]:
        """Return the advice ready for JSON."""
        return asdict(self)


class Exported:
    """The samples of a snapshot by process. Families are indexed when they are first read."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._by_process: dict[str, dict[str, list[tuple[Labels, Value]]]] = {}

    def rows(self, name: str, process: str) -> Sequence[tuple[Labels, Value]]:
        """Return the samples of a family with the label `process`, as (labels by name, value)."""
        if name not in self._by_process:
            found: dict[str, list[tuple[Labels, Value]]] = {}
            family = self._families.get(name)
            for values, value in family.samples if family else ():
                labels = dict(zip(family.metric.labels, values, strict=True)) if family else {}
                found.setdefault(labels.get("process", ""), []).append((labels, value))
            self._by_process[name] = found
        return self._by_process[name].get(process, ())


@dataclass(frozen=True, slots=True)
class Subject:
    """What a row may read: the exported series of one process, and its fields in the status (`status/processes.py`)."""

    process: str
    exported: Exported
    facts: Mapping[str, Any]

    def rows(self, name: str) -> Sequence[tuple[Labels, Value]]:
        """Return the samples of a family."""
        return self.exported.rows(name, self.process)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the first sample with these labels, None without one."""
        for found, value in self.rows(name):
            if isinstance(value, (int, float)) and all(found[key] == wanted for key, wanted in labels.items()):
                return float(value)
        return None

    def label(self, name: str, label: str) -> str:
        """Return a label of an info family, "" if it is not known."""
        return next((labels[label] for labels, _ in self.rows(name)), "")

    def gain(self, cause: str) -> Gain | None:
        """Return the expected gain without a cause, None if it is not decided."""
        bounds = (self.value(f"{_GAIN}{part}_ratio", cause=cause) for part in ("", "_lower", "_upper"))
        expected, lower, upper = bounds
        after = next((labels["next"] for labels, _ in self.rows(f"{_GAIN}_info") if labels["cause"] == cause), "")
        if expected is None or lower is None or upper is None or not after:
            return None
        return Gain(expected, lower, upper, after)


def _limit(subject: Subject) -> Advice | None:
    """What limits the process, by its cause."""
    cause = CAUSES.get(subject.facts.get("limited_by") or "")
    return Advice(cause.name, "limit", cause.advice, subject.gain(cause.name)) if cause else None


def _on_cpu(subject: Subject) -> Advice | None:
    """What the steps of a training on the CPU wait for most. No GPU time is lost, so nothing is named as its limit."""
    if subject.facts.get("state") != "training_on_cpu" or subject.facts.get("limited_by"):
        return None
    known = {labels["cause"]: subject.gain(labels["cause"]) for labels, _ in subject.rows(f"{_GAIN}_ratio")}
    decided = {cause: gain for cause, gain in known.items() if gain is not None}
    if not decided:
        return None
    cause = max(decided, key=lambda name: decided[name].expected)
    return Advice(cause, "limit", CAUSES[cause].advice, decided[cause])


def _stalled(subject: Subject) -> Advice | None:
    if subject.facts.get("state") != "stalled":
        return None
    return Advice(None, "stalled", STALLED_ADVICE.format(subject.facts.get("pid") or "PID"))


def _idle(subject: Subject) -> Advice | None:
    idle = subject.facts.get("state") == "held_idle" and not subject.facts.get("limited_by")
    return Advice(None, "idle", IDLE_ADVICE) if idle else None


def _hook(subject: Subject) -> Advice | None:
    """Without the hook the inside of the process is not known."""
    outside = not subject.facts.get("hook") and subject.facts.get("role") != "display"
    return Advice(None, "hook", RUN_ADVICE) if outside else None


def _known(mistake: Mistake) -> Callable[[Subject], Advice | None]:
    """Return the row of a known mistake of the program."""

    def row(subject: Subject) -> Advice | None:
        made = subject.value("training_mistake", mistake=mistake.name)
        return Advice(None, mistake.name, mistake.change) if made else None

    return row


_ON_MISTAKES = tuple(_known(mistake) for mistake in MISTAKES)
SOURCES: tuple[Callable[[Subject], Advice | None], ...] = (_limit, _on_cpu, _stalled, _idle, _hook, *_ON_MISTAKES)
"""A row is a pure function to at most one advice. What it needs it reads from the exported series of the process."""

_GENERAL = "limit"  # the topic that says least: another advice on the same cause replaces it


def advice_of(subject: Subject) -> list[Advice]:
    """Return the advice on a process, first that on its main cause, then by gain, then in the order of the table."""
    found = [advice for source in SOURCES if (advice := source(subject))]
    special = {advice.cause for advice in found if advice.topic != _GENERAL}
    kept = [advice for advice in found if advice.topic != _GENERAL or advice.cause not in special]
    first = subject.facts.get("limited_by")
    return sorted(kept, key=lambda a: (not first or a.cause != first, -a.gain.expected if a.gain else 0.0))


# By limit: what a step meets next, to follow "then it …".
_NEXT = {"gpu": "is limited by its kernels on the GPU", "cpu": "is limited by its computation on the CPU"}


def words(found: Sequence[Advice]) -> str | None:
    """Return the text of the first advice, with its gain, and of the known mistakes; None without an advice."""
    if not found:
        return None
    first, *others = found
    mistakes = {mistake.name for mistake in MISTAKES}
    texts = [f"{first.change}: {gain_words(asdict(first.gain))}" if first.gain else first.change]
    return "; also ".join([*texts, *(advice.change for advice in others if advice.topic in mistakes)])


def gain_words(gain: Mapping[str, Any]) -> str:
    """Return a gain in words, from its plain data."""
    expected, lower, upper = (f"{gain[bound]:.2g}" for bound in ("expected", "lower", "upper"))
    after = _NEXT.get(gain["next"]) or cause_phrase(gain["next"])
    between = f" ({lower} to {upper})" if lower != upper else ""
    return f"steps {expected} times as fast{between}; then it {after}"
