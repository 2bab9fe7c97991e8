"""One process on one screen: what it does, where its steps go, what limits it, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpugauge.base.serving import ROLES
from gpugauge.status.advice import words_of_gain
from gpugauge.status.details import FOR_DATA, details, is_lossless, loss, no_limit, remark, waits_longest
from gpugauge.status.ended import NEXT_TIME
from gpugauge.status.model import Advice
from gpugauge.status.standstill import stack_lines
from gpugauge.status.use import by_place, unhooked
from gpugauge.status.words import loader_advice, percent, plural
from gpugauge.terminal.columns import Writer
from gpugauge.terminal.rows import Process, gib, safe
from gpugauge.terminal.style import BLUE, BOLD, CYAN, DIM, GREEN, LEVELS, MAGENTA, RED, YELLOW
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.verdict.savings import LEAST_SHARE
from gpugauge.wire.shares import parts as shares_of

# By part of a step: what fills the bar, and its colour.
_FILLS = {
    "data": ("█", YELLOW),
    "peers": ("▓", MAGENTA),
    "evaluating": ("▒", CYAN),
    "checkpointing": ("=", BLUE),
    "compiling": ("+", BLUE),
    "generating": ("~", CYAN),
    "rest": ("░", GREEN),
    "running": ("░", GREEN),
    "runnable": ("▚", YELLOW),
    "asleep": ("·", DIM),
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
    return _Screen(process, now, Writer(width, colour=colour)).lines()


class _Screen:
    def __init__(self, process: Process, now: float, writer: Writer) -> None:
        self._process, self._facts, self._now = process, process.facts, now
        self._writer, self._text = writer, writer.text

    def lines(self) -> list[str]:
        facts = self._facts
        sections: dict[str, Iterable[str]] = {
            "Where it is": self._standstill(),
            "What limits it": self._limit(),
            "What to change": self._changes(),
            "Known mistakes": self._mistakes(),
            "Where a step goes": self._step(),
        }
        if facts.starting:
            sections = {}
        elif facts.ended is not None:
            to_do = () if (facts.advice or NEXT_TIME).startswith(NEXT_TIME) else self._text(safe(facts.advice), "  ")
            later = self._changes() if facts.changes else ()
            sections = {"Where a step went": self._step(), "What to do": to_do, "What to change next time": later}
        lines = [*self._heading()]
        for title, section in sections.items():
            if found := list(section):
                lines += ["", self._writer.paint(title, BOLD), *found]
        return lines

    def _heading(self) -> Iterator[str]:
        facts = self._facts
        pid = "pid unknown" if facts.pid is None else f"pid {facts.pid}"
        named = [f"{safe(facts.command) or 'process'}, {pid}", safe(self._process.owner)]
        yield from self._writer.flow(list(filter(None, named)), style=BOLD)
        # The bar shows the shares.
        hidden = replace(facts, step_shares={}, rest_shares={}, data_wait_ratio=None)
        does = [safe(text) for text in (self._state(), *self._uses(), *details(hidden, self._now))]
        yield from self._writer.flow(does, style=LEVELS.get(facts.tone, ""))

    def _state(self) -> str:
        facts = self._facts
        if facts.ended is not None:
            return facts.state_words
        if facts.role == "display":
            return "a display server or a desktop program"
        if facts.state in {None, "unknown"}:
            outside = (f"a {facts.role}, " if facts.role in ROLES else "") + "seen from outside only"
            return "its state is not known yet" if facts.hook or facts.starting else outside
        return _STATES.get(facts.state or "") or facts.state_words

    def _uses(self) -> list[str]:
        process = self._process
        shown = [f"GPU{'s' if len(process.gpus) > 1 else ''} {process.where}" if process.gpus else "no GPU"]
        shown += [f"GPU busy {percent(process.load)} (5 min)"] if process.load is not None else []
        shown += [f"{gib(process.memory_bytes)} GiB"] if process.memory_bytes is not None else []
        age = process.age(self._now)
        return shown + ([f"{'running' if self._facts.ended is None else 'ran'} {age}"] if age else [])

    def _step(self) -> Iterator[str]:
        """Yield a bar with the parts of the steps of the last minute."""
        parts = shares_of(self._facts.step_shares, self._facts.rest_shares)
        if not parts:
            known = "no steps in the last minute" if self._facts.hook else "not known without the hook"
            if self._facts.role not in ROLES:
                yield from self._text(known, "  ", DIM)
            return
        if [name for name, _, _ in parts] in (["rest"], ["running"]) and self._facts.state != "training_on_cpu":
            text = "its thread runs on a CPU all the time, also while it waits for the GPU or for copies"
            yield from self._text(text, "  ", DIM)
            return
        widths = apportion([share for _, _, share in parts], self._writer.width - 2)
        filled = ((*_FILLS[name], cells) for (name, _, _), cells in zip(parts, widths, strict=True))
        yield "  " + "".join(self._writer.paint(sign * cells, colour) for sign, colour, cells in filled)
        yield from self._writer.flow(
            [f"{_FILLS[name][0]} {percent(share)} {words}" for name, words, share in parts], "  "
        )

    def _limit(self) -> Iterator[str]:
        facts = self._facts
        if open_ := no_limit(facts, self._now):
            yield from self._text(open_, "  ")
        elif facts.limited_by:
            found = facts.evidence.split("; ") if facts.evidence else []
            label = f" [{safe(facts.limited_by)}]" if len(found) == 1 else ""
            yield from self._text(f"it {safe(remark(facts))}{label}", "  ", LEVELS.get(facts.tone, ""))
            for text in found:
                yield from self._text(f"evidence: {safe(text)}", "  ", DIM)
        elif facts.state == "training_on_cpu":
            waits = loss(facts)[1]
            label = " [data_loading]" if [words for words, _ in waits_longest(facts)] == [FOR_DATA] else ""
            asleep = facts.rest_shares.get("asleep", 0.0)
            most = f"it {waits}{label}" if waits else "its waits take less than half of its time"
            if not waits and asleep >= 0.5:
                most = f"it sleeps {percent(asleep)} of its time outside of its waits"
                most += f": gpugauge stack {facts.pid} shows where"
            yield from self._text(f"{most}; there is no GPU here, so no GPU time is lost", "  ")
        elif facts.state == "held_idle":
            yield from self._text("it runs nothing; its memory is free when it ends, or its kernel restarts", "  ")
        else:
            yield from self._no_cause()
        if facts.undecidable and facts.hook:
            yield from self._text(f"not decidable here: {', '.join(map(safe, facts.undecidable))}", "  ", DIM)
            if advice := loader_advice(facts.undecidable, facts.data_wait_ratio):
                yield from self._text(advice, "  ", DIM)

    def _no_cause(self) -> Iterator[str]:
        facts = self._facts
        if facts.hook:
            judged = facts.state in _JUDGED
            text = "no cause is large enough to be named" if judged else "not judged in this state"
            if is_lossless(facts):
                text = f"less than {percent(LEAST_SHARE)} of its GPU time is lost to each cause"
            yield from self._text(text, "  ")
        elif facts.role not in ROLES:
            places = [
                found for gpu in self._process.gpus for _, found in by_place(gpu, gpu.processes) if facts in found
            ]
            others = max((len(unhooked(found)) for found in places), default=1) - 1
            if others > 0:
                text = f"it shares its GPU with {plural(others, 'other program')} without the hook"
                yield from self._text(f"{text}: check that they are meant to share it", "  ", YELLOW)
            yield from self._text("not known without the hook", "  ", DIM)

    def _standstill(self) -> Iterator[str]:
        if self._facts.standstill:
            for line in stack_lines(self._facts.standstill):
                yield from self._text(safe(line), "  ")

    def _changes(self) -> Iterator[str]:
        found, number = [change for change in self._facts.changes if change.topic not in _MISTAKES], 0
        for gpu in self._process.gpus if self._facts.ended is None else ():
            if fault := next((fault for fault in gpu.faults if fault.grave and fault.action), None):
                number += 1
                which = "its GPU" if gpu.index is None else f"GPU {gpu.index}"
                text = f"save a checkpoint and end it, for the repair of {which}: {safe(fault.text)}"
                yield from self._text(text, f"  {number}. ", RED)
        for change in found:
            steps = change.steps or (change.change,)
            for step in steps:
                number += 1
                yield from self._text(safe(step), f"  {number}. ")
            first = number - len(steps) + 1
            yield from self._gain(change, f"steps {first} to {number}: " if steps[1:] else "")
        if not found and not number and self._facts.hook and not no_limit(self._facts, self._now):
            yield from self._text("nothing was found that makes its steps faster", "  ")

    def _gain(self, change: Advice, of: str) -> list[str]:
        known = words_of_gain(change)
        why = {"unused_gpus": "its steps stay as fast, and GPUs are free", "unknown": "the cause is not known"}
        text = known or (why.get(change.cause, "the gain is not decided: too little is known") if change.cause else "")
        return self._text(f"→ {of}{safe(text)}", "     ", GREEN if change.gain else DIM, hanging=2) if text else []

    def _mistakes(self) -> Iterator[str]:
        for change in self._facts.changes:
            if mistake := _MISTAKES.get(change.topic):
                yield from self._text(f"{mistake.name}: {mistake.evidence}", "  ", YELLOW, hanging=2)
                yield from self._text(f"→ {safe(change.change)}", "     ", hanging=2)


def apportion(shares: Sequence[float], width: int) -> list[int]:
    """Return whole cells in proportion to the shares, `width` in all; each share has at least one."""
    weights = [share + 1e-9 for share in shares]
    sizes = [1 + int(weight / sum(weights) * (width - len(shares))) for weight in weights]
    for place in sorted(range(len(shares)), key=weights.__getitem__, reverse=True)[: width - sum(sizes)]:
        sizes[place] += 1
    return sizes
