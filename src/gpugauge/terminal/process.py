"""One process on one screen: what it does, where its steps go, what limits it, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpugauge.status.advice import gain_words
from gpugauge.status.details import details, remark
from gpugauge.status.owner import owner
from gpugauge.status.steps import loader_advice
from gpugauge.status.words import cause_phrase, percent
from gpugauge.terminal.columns import cells, wrap
from gpugauge.terminal.screen import Process
from gpugauge.terminal.style import BLUE, BOLD, CYAN, DIM, GREEN, LEVELS, MAGENTA, YELLOW, painter
from gpugauge.terminal.values import age, gib, ratio, safe
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.wire.shares import parts as shares_of

_MIN_WIDTH = 20
# By part of a step: what fills the bar, and its colour.
_FILLS = {
    "data": ("█", YELLOW),
    "peers": ("▓", MAGENTA),
    "evaluating": ("▒", CYAN),
    "checkpointing": ("=", BLUE),
    "compiling": ("+", BLUE),
    "generating": ("~", CYAN),
    "rest": ("░", GREEN),
}
# By state, where the words of the tables are too short for a sentence.
_STATES = {
    "training_on_cpu": "training on the CPU",
    "held_idle": "idle: it holds a GPU and runs nothing on it",
    "stalled": "stalled: no step and no batch",
    "checkpointing": "writing a checkpoint",
    "not_training": "not training",
}
_MISTAKES = {mistake.name: mistake for mistake in MISTAKES}
_JUDGED = frozenset({"training", "evaluating", "checkpointing", "generating"})


def process_screen(process: Process, now: float, width: int, *, colour: bool) -> list[str]:
    """Return the lines about a process; `now` is the Unix time of its facts, `width` that of the terminal."""
    return _Screen(process, now, max(_MIN_WIDTH, width), colour).lines()


class _Screen:
    """A process at a width."""

    def __init__(self, process: Process, now: float, width: int, colour: bool) -> None:
        self._process, self._facts, self._now = process, process.facts, now
        self._width, self._paint = width, painter(colour)

    def lines(self) -> list[str]:
        """Return all lines."""
        sections: dict[str, Iterable[str]] = {
            "Where a step goes": self._step(),
            "What limits it": self._limit(),
            "What to change": self._changes(),
            "Known mistakes": self._mistakes(),
        }
        if self._facts.get("starting"):
            sections = {}
        elif self._facts.get("ended") is not None:
            advice = self._facts.get("advice")
            to_do = self._text(safe(advice), "  ") if advice else ()
            sections = {"Where a step went": self._step(), "What to do": to_do}
        lines = [*self._heading()]
        for title, section in sections.items():
            if found := list(section):
                lines += ["", self._paint(title, BOLD), *found]
        return lines

    def _heading(self) -> Iterator[str]:
        """Yield who the process is, and what it does."""
        facts = self._facts
        pid = "pid unknown" if facts["pid"] is None else f"pid {facts['pid']}"
        named = [f"{safe(facts.get('command')) or 'process'}, {pid}", safe(owner(facts["workload"]))]
        yield from self._flow(list(filter(None, named)), " · ", style=BOLD)
        # The bar shows the shares, and the state names its phase.
        hidden: dict[str, Any] = {"step_shares": {}, "data_wait_ratio": None}
        hidden |= {"phase": None} if (facts.get("state") or "").startswith(facts.get("phase") or "-") else {}
        known = details({**facts, **hidden}, self._now)
        does = [safe(text) for text in (self._state(), *self._uses(), *known)]
        yield from self._flow(does, " · ", style=LEVELS.get(facts.get("level") or "", ""))

    def _state(self) -> str:
        facts = self._facts
        if facts.get("ended") is not None:
            return str(facts["state_words"])
        if facts.get("role") == "display":
            return "a display server or a desktop program"
        if facts.get("state") in {None, "unknown"}:
            known = facts.get("hook") or facts.get("starting")
            return "its state is not known yet" if known else "seen from outside only"
        return _STATES.get(facts["state"]) or str(facts["state_words"])

    def _uses(self) -> list[str]:
        process = self._process
        shown = [f"GPU{'s' if len(process.gpus) > 1 else ''} {process.where}" if process.gpus else "no GPU"]
        shown += [f"load {ratio(process.load)}"] if process.load is not None else []
        shown += [f"{gib(process.memory_bytes)} GiB"] if process.memory_bytes is not None else []
        return shown + ([f"running {age(self._facts['started'], self._now)}"] if self._facts["started"] else [])

    def _step(self) -> Iterator[str]:
        """Yield a bar with the parts of the steps of the last minute."""
        facts = self._facts
        parts = shares_of(facts.get("step_shares") or {})
        if not parts:
            known = "no steps in the last minute" if facts.get("hook") else "not known without the hook"
            yield from self._text(known, "  ", DIM)
            return
        widths = apportion([share for _, _, share in parts], self._width - 2)
        drawn = [self._paint(_FILLS[n][0] * size, _FILLS[n][1]) for (n, _, _), size in zip(parts, widths, strict=True)]
        yield "  " + "".join(drawn)
        yield from self._flow(
            [f"{_FILLS[name][0]} {percent(share)} {words}" for name, words, share in parts], " · ", "  "
        )

    def _limit(self) -> Iterator[str]:
        facts = self._facts
        undecided = facts.get("undecidable") or []
        cause = facts.get("limited_by")
        if cause:
            style = LEVELS.get(facts.get("level") or "", "")
            yield from self._text(f"it {safe(remark(facts))} [{safe(cause)}]", "  ", style)
            if facts.get("evidence"):
                yield from self._text(f"evidence: {safe(facts['evidence'])}", "  ", DIM)
        elif facts.get("state") == "training_on_cpu":
            waits = next((change["cause"] for change in facts.get("changes") or () if change["cause"]), None)
            most = f"it {cause_phrase(waits)} [{waits}]; " if waits else ""
            yield from self._text(f"{safe(most)}there is no GPU here, so no GPU time is lost", "  ")
        elif facts.get("hook"):
            judged = facts.get("state") in _JUDGED
            text = "no cause is large enough to be named" if judged else "not judged in this state"
            yield from self._text(text, "  ")
        else:
            yield from self._text("not known without the hook", "  ", DIM)
        if undecided and facts.get("hook"):
            yield from self._text(f"not decidable here: {', '.join(map(safe, undecided))}", "  ", DIM)
            if advice := loader_advice(undecided):
                yield from self._text(advice, "  ", DIM)

    def _changes(self) -> Iterator[str]:
        """Yield the advice, first that with the largest gain."""
        found = [change for change in self._facts.get("changes") or () if change["topic"] not in _MISTAKES]
        found.sort(key=lambda change: -change["gain"]["expected"] if change["gain"] else 0.0)
        for number, change in enumerate(found, 1):
            yield from self._text(safe(change["change"]), f"  {number}. ")
            yield from self._gain(change)
        if not found and self._facts.get("hook"):
            yield from self._text("nothing was found that makes its steps faster", "  ")

    def _gain(self, change: Mapping[str, Any]) -> Iterator[str]:
        if change["gain"]:
            yield from self._text(f"→ {safe(gain_words(change['gain'], change['cause']))}", "     ", GREEN, hanging=2)
        elif change["cause"]:
            yield from self._text("→ the gain is not decided", "     ", DIM, hanging=2)

    def _mistakes(self) -> Iterator[str]:
        for change in self._facts.get("changes") or ():
            if mistake := _MISTAKES.get(change["topic"]):
                yield from self._text(f"{mistake.name}: {mistake.evidence}", "  ", YELLOW, hanging=2)
                yield from self._text(f"→ {safe(change['change'])}", "     ", hanging=2)

    def _flow(self, entries: Sequence[str], between: str, indent: str = "", style: str = "") -> Iterator[str]:
        """Yield lines of entries, which are divided only if they are wider than a line."""
        line = ""
        for entry in entries:
            if line and cells(indent + line + between + entry) > self._width:
                yield from self._text(line, indent, style)
                line = ""
            line += (between if line else "") + entry
        yield from self._text(line, indent, style)

    def _text(self, text: str, indent: str, style: str = "", hanging: int = 0) -> list[str]:
        following = " " * (len(indent) + hanging)
        return [self._paint(line, style) for line in wrap(text, self._width, indent, following)]


def apportion(shares: Sequence[float], width: int) -> list[int]:
    """Return whole cells in proportion to the shares, `width` in all; each share has at least one."""
    total = sum(shares) or 1.0
    exact = [share / total * width for share in shares]
    sizes = [max(1, int(size)) for size in exact]
    while sum(sizes) != width:
        step = 1 if sum(sizes) < width else -1
        able = [i for i, size in enumerate(sizes) if size + step >= 1]
        if not able:
            break
        nearest = max(able, key=lambda i: step * (exact[i] - sizes[i]))
        sizes[nearest] += step
    return sizes
