"""Ranks that make no progress: where each is, in words, and the roll call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from gpugauge.sessions.inquiry import ENDED, SILENT, WAITING
from gpugauge.status.model import Frame, ProcessStatus, Standstill
from gpugauge.status.words import runs
from gpugauge.wire.shares import NAMED_PHASES


def place(standstill: Standstill) -> str:
    """Return the innermost line of the program, as `train.py:88`, "" if it is not known."""
    frame = _own(standstill)
    return f"{frame.file.rpartition('/')[2]}:{frame.line}" if frame else ""


def _own(standstill: Standstill) -> Frame | None:
    return next((f for f in reversed(standstill.stack) if f.own), None) or next(reversed(standstill.stack), None)


def words(standstill: Standstill, phase: str = "", *, many: bool = False) -> str:
    """Return what a rank in a phase, or `many`, do: "waits in all_reduce at train.py:88"."""
    if standstill.stopped:
        return f"{'are' if many else 'is'} stopped by a signal"
    if standstill.position == ENDED:
        return f"{'have' if many else 'has'} ended"
    if standstill.position == SILENT:
        return f"{'do' if many else 'does'} not answer"
    frame, waits = _own(standstill), standstill.position == WAITING
    function = standstill.function if waits else frame.function if frame else ""
    verb = ("wait" if many else "waits") if waits else " ".join(["are" if many else "is", *phase.split()])
    where = f" at {place(standstill)}" if frame else ""
    inside = f" in {function}" if function else " for other ranks" if waits else ""
    return f"{verb}{inside}{where}"


def roll_call(ranks: Iterable[ProcessStatus]) -> dict[str, bool]:
    """Return a line for all ranks of a job that do the same, and whether the others wait for them; these come first."""
    groups: dict[tuple[bool, str, str], list[int]] = {}
    for process in ranks:
        if process.standstill and process.rank is not None:
            phase = process.state if process.state in NAMED_PHASES else ""
            one, many = (words(process.standstill, phase, many=several) for several in (False, True))
            groups.setdefault((not process.standstill.behind, one, many), []).append(process.rank)
    lines = {}
    for (free, one, many), found in sorted(groups.items()):
        subject = f"rank{'' if len(found) == 1 else 's'} {', '.join(runs(found))}"
        held = "" if free else f": the others wait for {'it' if len(found) == 1 else 'them'}"
        lines[f"{subject} {one if len(found) == 1 else many}{held}"] = not free
    return lines


def own_work(process: ProcessStatus) -> float | None:
    """Return the share of the last minute in which a rank did not wait for others, None if it is not known."""
    waits = process.step_shares.get("peers")
    return None if waits is None else 1.0 - waits


def stack_lines(standstill: Standstill) -> Iterator[str]:
    """Yield the stack as Python prints one, with its time."""
    at = datetime.fromtimestamp(standstill.at, timezone.utc) if standstill.at is not None else None
    if at is None or not standstill.stack:
        yield f"no stack: it has {'ended' if standstill.position == ENDED else 'not answered'}"
        return
    yield f"stack at {at:%Y-%m-%d %H:%M:%S} UTC, the innermost call last:"
    for frame in standstill.stack:
        yield f"  {frame.file}:{frame.line} {frame.function}"
