"""One line on stderr at the end of a training under `gpugauge run`: steps, mean step, and the shares of its time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SPENT, WAITED
from gpugauge.wire.shares import sentence, shares, with_waits

TYPE_CHECKING = False  # the state needs torch
if TYPE_CHECKING:
    from gpugauge.hook.state import TrainingState

_MIN_START_SECONDS = 0.5  # a shorter start-up is not named
_PID = os.getpid()  # of the process that has loaded the hook
_printed = False


def print_recap(state: TrainingState, connected: bool) -> None:
    """Print the line once, if `gpugauge run` asks for it and this process is the one to print it. Never raises."""
    global _printed  # noqa: PLW0603 - a process ends once, by one or several of the ways that call this
    try:
        if _printed or not _asked() or not _prints(state.rank or os.environ.get("RANK")):
            return
        _printed = True
        if line := recap(state):
            sys.stderr.write(f"gpugauge: {line}{'' if connected else '; no daemon was found'}\n")
    except Exception:
        pass  # stderr is closed


def _asked() -> bool:
    """Return whether the line is wanted on this stderr: not where a program reads what this process writes."""
    asked, file = os.environ.get(wire.RECAP_VARIABLE), os.fstat(2)
    return asked in ("1", wire.recap_on(file))


def _prints(rank: str | None) -> bool:
    """Return whether this is the first rank, or a process of its own, neither forked nor a child of multiprocessing."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    child = multiprocessing is not None and multiprocessing.parent_process() is not None
    if os.getpid() != _PID or child:
        # A rank that torch.multiprocessing has started, not a child of a rank, which has inherited its variables.
        return rank == "0" and not any(entry.startswith(b"RANK=") for entry in _first_environment())
    return rank in (None, "0")


def _first_environment() -> list[bytes]:
    return Path("/proc/self/environ").read_bytes().split(b"\0")


def recap(state: TrainingState) -> str | None:
    """Return the line without its prefix, None for a process that has made no step and taken no batch."""
    recorder = state.recorder
    recorder.drain()
    tally, batches = recorder.step_tally, recorder.batch_tally
    if not tally.count and not batches.count:
        return None
    if tally.count:
        mean = f", {_time(tally.nanoseconds / tally.durations / 1e9)} each" if tally.durations else ""
        done = f"{tally.count:,} step{'' if tally.count == 1 else 's'}{mean}"
    else:
        done = f"{batches.count:,} batches"
    phases, waits = _seconds(state)
    data = waits.get("training", 0.0) if any(waits.values()) else None
    starting = phases.get("starting", 0.0)
    known = shares(with_waits(phases, waits), data, _peers(state))
    listed = [sentence(known), "waits for data not known" if data is None else ""]
    begun = f" after a start of {_time(starting)}" if starting >= _MIN_START_SECONDS else ""
    whole = sum(phases.values()) - starting
    return f"{_program()}: {done}{begun}; of {_time(whole)}: {', '.join(filter(None, listed))}"


def _program() -> str:
    """Return the name of the program: of `python -m package`, that of the package."""
    path = Path(sys.argv[0]) if sys.argv else Path()
    name = path.parent.name if path.name == "__main__.py" else path.name
    return {"": "python", "-": "python", "-c": "python -c"}.get(name, name)


def _seconds(state: TrainingState) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds by phase until now, and those of the waits for batches by the phase that they were for."""
    words, live = state.record.words, state.live
    spent = {phase: words[SPENT + place] for place, phase in enumerate(PHASES)}
    spent[PHASES[live.phase]] += max(0, CLOCKS[0]() - live.since)
    waited = {phase: words[WAITED + place] for place, phase in enumerate(PHASES)}
    return _in_seconds(spent), _in_seconds(waited)


def _in_seconds(nanoseconds: dict[str, int]) -> dict[str, float]:
    return {phase: spent / 1e9 for phase, spent in nanoseconds.items()}


def _peers(state: TrainingState) -> float | None:
    """Return the seconds of waits for other ranks, None if they are not known."""
    local = state.local_work.nanoseconds
    return None if local is None else max(0, state.recorder.step_tally.nanoseconds - local) / 1e9


def _time(seconds: float) -> str:
    """Return a duration with the precision that a reader needs."""
    if seconds < 0.9995:  # more would be 1e+03 ms
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
