"""One line on stderr at the end of a training under `gpugauge run`: steps, mean step, and the shares of the time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SPENT, WAITED

TYPE_CHECKING = False  # the state needs torch
if TYPE_CHECKING:
    from gpugauge.hook.state import TrainingState

_MIN_SHARE = 0.01  # a smaller share is left out
_PID = os.getpid()  # of the process that has loaded the hook
_WORDS = {"loading": "waiting for data", "other": "other phases"}


def print_recap(state: TrainingState, connected: bool) -> None:
    """Print the line, if `gpugauge run` asks for it and this process is the one to print it. Never raises."""
    try:
        if (
            os.environ.get(wire.RECAP_VARIABLE) == "1"
            and _prints(state.rank or os.environ.get("RANK"))
            and (line := recap(state))
        ):
            sys.stderr.write(f"gpugauge: {line}{'' if connected else '; no daemon was found'}\n")
    except Exception:
        pass  # stderr is closed


def _prints(rank: str | None) -> bool:
    """Return whether this is the first rank, or a process of its own, neither forked nor a child of multiprocessing."""
    if rank is not None:
        return rank == "0"
    if os.getpid() != _PID:
        return False
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is None or multiprocessing.parent_process() is None


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
    seconds = _seconds(state)
    total = sum(seconds.values())
    parts = sorted(((spent / total, phase) for phase, spent in seconds.items()), reverse=True)
    listed = [f"{share:.0%} {_WORDS.get(phase, phase)}" for share, phase in parts if share >= _MIN_SHARE]
    if not any(state.record.words[WAITED:]):
        listed.append("waits for data not known")
    return f"{_program()}: {done}; of {_time(total)}: {', '.join(listed)}"


def _program() -> str:
    """Return the name of the program: of `python -m package`, that of the package."""
    path = Path(sys.argv[0]) if sys.argv else Path()
    name = path.parent.name if path.name == "__main__.py" else path.name
    return {"": "python", "-": "python", "-c": "python -c"}.get(name, name)


def _seconds(state: TrainingState) -> dict[str, float]:
    """Return the seconds by phase until now; the waits for other ranks, which are a part of the training, are apart."""
    words, phases = state.record.words, state.phases
    nanoseconds = {phase: words[SPENT + place] for place, phase in enumerate(PHASES)}
    nanoseconds[PHASES[phases.current]] += max(0, CLOCKS[0]() - phases.since)
    local, tally = state.local_work.nanoseconds, state.recorder.step_tally
    if local is not None:
        waited = min(nanoseconds["training"], max(0, tally.nanoseconds - local))
        nanoseconds["training"] -= waited
        nanoseconds["waiting for other ranks"] = waited
    return {phase: spent / 1e9 for phase, spent in nanoseconds.items()}


def _time(seconds: float) -> str:
    """Return a duration with the precision that a reader needs."""
    if seconds < 1.0:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
