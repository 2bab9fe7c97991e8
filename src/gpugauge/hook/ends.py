"""The end of this process: its reason as far as the process knows it. The daemon reads the exit status from the kernel
where it can; this adds what no status shows (out of memory), and counts alone where it cannot see the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.observer import Observer
from gpugauge.hook.process import first_environment
from gpugauge.hook.workers import thread_seconds
from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SPENT, STEPS, WAITED
from gpugauge.wire.shares import divided, queued, sentence, shares, with_waits

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
        # Not where a program reads what this process writes.
        asked = os.environ.get(wire.RECAP_VARIABLE) in ("1", wire.recap_on(os.fstat(2)))
        if _printed or not asked or not _prints(state.facts.get("rank") or os.environ.get("RANK")):
            return
        _printed = True
        if line := recap(state):
            from shlex import quote  # noqa: PLC0415 - not loaded by the start of a training

            more = f"more: gpugauge report {quote(_program())}" if connected else "no daemon was found"
            sys.stderr.write(f"gpugauge: {line}; {more}\n")
    except Exception:
        pass  # stderr is closed


def _prints(rank: str | None) -> bool:
    """Return whether this is the first rank, or a process of its own, neither forked nor a child of multiprocessing."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    child = multiprocessing is not None and multiprocessing.parent_process() is not None
    if os.getpid() != _PID or child:
        # A rank that torch.multiprocessing has started, not a child of a rank, which has inherited its variables.
        return rank == "0" and "RANK" not in first_environment()
    return rank in (None, "0")


def recap(state: TrainingState) -> str | None:
    """Return the line without its prefix, None for a process that has made no step and taken no batch."""
    recorder = state.recorder
    recorder.drain()
    tally, batches = recorder.step_tally, recorder.batch_tally
    if not tally.count and not batches.count and not state.backward_passes:
        return None
    if tally.count:
        mean = f", {_time(tally.nanoseconds / tally.durations / 1e9)} each" if tally.durations else ""
        done = f"{tally.count:,} step{'' if tally.count == 1 else 's'}{mean}"
    else:
        done = f"{batches.count:,} batches" if batches.count else f"{state.backward_passes:,} backward passes"
        done += ", steps not known (gpugauge.hook.step() counts them)" if state.backward_passes else ""
    record = state.record
    spent, waited = list(record.words[SPENT : SPENT + len(PHASES)]), record.words[WAITED : WAITED + len(PHASES)]
    spent[record.phase] += max(0, CLOCKS[0]() - record.since)
    phases, waits = ({phase: part[at] / 1e9 for at, phase in enumerate(PHASES)} for part in (spent, waited))
    data = waits.get("training", 0.0) if any(waits.values()) else None
    held = state.local_work.waits(record.words[STEPS], tally.nanoseconds)
    peers = None if held is None else held / 1e9
    starting = phases.get("starting", 0.0)
    whole, parts = sum(phases.values()) - starting, shares(with_waits(phases, waits), data, peers)
    outside = (1.0 - parts.get("data", 0.0)) * whole
    thread = _of_thread(state, outside, phases.get("training", 0.0))
    own = _in_thread(state)
    loading = queued(own.queued_seconds, own.batches, own.measured) if own else 0.0
    listed = (
        sentence(*divided(parts, thread, whole, loading)),
        "waits for data not known" if data is None else "",
    )
    begun = f" after a start of {_time(starting)}" if starting >= _MIN_START_SECONDS else ""
    return f"{_program()}: {done}{begun}; of {_time(whole)}: {', '.join(filter(None, listed))}"


def _of_thread(state: TrainingState, outside: float, training: float) -> dict[str, float]:
    """Return by state the seconds of the `training` that its thread spent `outside` of its waits for batches, in equal
    shares in all phases. {} if they are not known, and with a GPU, for which other threads run the backward passes.
    """
    begun, now, in_thread = state.loads.begun, thread_seconds(), _in_thread(state)
    if not begun or not now or not state.record.on_training_thread() or state.record.exposed:
        return {}
    of_loader = (in_thread.cpu_seconds or 0.0, in_thread.queued_seconds or 0.0) if in_thread else (0.0, 0.0)
    ran, waited = (max(0.0, now[at] - begun[at] - of_loader[at]) for at in (0, 1))
    found = {"running": ran, "runnable": waited, "asleep": max(0.0, outside - ran - waited)}
    return {name: seconds * training / max(outside, training) for name, seconds in found.items()}


def _in_thread(state: TrainingState) -> wire.Loader | None:
    """Return how the batches were loaded by the training thread itself, None with workers."""
    return state.loads.message(declared=False) if state.facts.get("loader_workers") == "0" else None


def _program() -> str:
    """Return the name of the program: of `python -m package`, that of the package."""
    path = Path(sys.argv[0]) if sys.argv else Path()
    name = path.parent.name if path.name == "__main__.py" else path.name
    return {"": "python", "-": "python", "-c": "python -c"}.get(name, name)


def _time(seconds: float) -> str:
    """Return a duration with the precision that a reader needs."""
    if seconds < 0.9995:  # more would be 1e+03 ms
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


UNKNOWN = "other"  # the exit status decides, where the daemon can read it

_INTERRUPTED_EXIT_CODE = 130  # of shells, for SIGINT
_RETURNS = tuple(opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opmap)
# Of the RuntimeError of torch's CPU allocator, and of allocations of the driver outside the caching allocator.
_OUT_OF_MEMORY_TEXTS = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "HIP error: out of memory")


class Ends:
    """Reports the end of the process through the observer. No error of it reaches the program."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._main = _main_frame()
        self.uncaught: str | None = None  # reason by the code of the SystemExit that ends the process
        self._failure: tuple[int, str] | None = None  # the last code other than 0 with a known reason

    def install(self) -> None:
        """Wrap the ways to end a process; register with atexit."""
        atexit.register(self.at_exit)
        sys.exit = self._exit_wrapper(sys.exit)
        os._exit = self._wrapper(os._exit, self._last_code)
        # The other functions of this family call these two. If no program can be started, the process continues.
        os.execv = self._wrapper(os.execv, lambda *_: UNKNOWN)
        os.execve = self._wrapper(os.execve, lambda *_: UNKNOWN)

    def _wrapper(self, original: Callable[..., Any], reason: Callable[..., str]) -> Any:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            with contextlib.suppress(BaseException):  # a signal handler may raise: the end goes before it
                self._observer.end_session(reason(*arguments, *named.values()))
            return original(*arguments, **named)

        wrapper.__module__ = "os"  # the original is of posix, where pickle would not find this one
        return wrapper

    def _exit_wrapper(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def wrapper(*arguments: Any) -> Any:
            reason = attempt(UNKNOWN, self.by_code, *arguments)
            mark = _Mark(self, reason)  # noqa: F841 - lives as long as the traceback
            return original(*arguments)

        return wrapper

    def at_exit(self) -> None:
        """Report the end of the interpreter. Registered with atexit."""
        try:
            self._observer.end_session(self.reason())
            # Programs (multiprocessing) run the functions of atexit themselves and continue.
            if sys._getframe().f_back is None:  # noqa: SLF001 - no public function returns it
                print_recap(self._observer.state, self._observer.client.connected)
                self._observer.leave()
                self._main = None  # keeps the globals of the program, whose order of destruction must not change
        except Exception:
            pass

    def _last_code(self, code: Any = None) -> str:
        print_recap(self._observer.state, self._observer.client.connected)
        return self.by_code(code)

    def by_code(self, code: Any = None) -> str:
        """Return the reason for an end by sys.exit() or os._exit(), from the code and the exception being handled."""
        code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        if code == 0:
            return "finished"
        kind, error, _ = sys.exc_info()
        reason = by_error(kind, error) if kind else "error"
        if reason == "error":
            # A child of multiprocessing ends by two calls with the same code, and only the first handles the error.
            if self._failure is not None and self._failure[0] == code:
                return self._failure[1]
            return "interrupted" if code == _INTERRUPTED_EXIT_CODE else "error"
        self._failure = (code, reason)
        return reason

    def reason(self) -> str:
        """Return the reason for the end of the interpreter: one of wire.END_REASONS, or UNKNOWN. For use at exit."""
        if hasattr(sys, "ps1"):  # an interactive interpreter stores every error, and none ends it
            return "finished"
        main, trace = self._main, getattr(sys, "last_traceback", None)
        if main is not None and main.f_lasti >= 0 and main.f_code.co_code[main.f_lasti] in _RETURNS:
            return "finished"
        if self.uncaught is not None:
            return self.uncaught
        # Frameworks store errors here, too (pytest). That of the interpreter begins with the main module.
        if trace is not None and (main is None or trace.tb_frame is main):
            return by_error(sys.last_type, sys.last_value)
        return UNKNOWN


class _Mark:
    """A local variable of the wrapper of sys.exit(): released with the traceback of the SystemExit. While a frame is
    left, the program has caught it. Without one, it ends the interpreter.
    """

    def __init__(self, ends: Ends, reason: str) -> None:
        self._ends, self._reason = ends, reason

    def __del__(self) -> None:
        try:
            # The first one that leaves the main thread counts.
            main = threading.current_thread() is threading.main_thread()
            if sys._getframe().f_back is None and main and self._ends.uncaught is None:  # noqa: SLF001 - as above
                self._ends.uncaught = self._reason
        except Exception:
            pass


def by_error(kind: Any, error: Any) -> str:
    """Return the reason for an end by an uncaught exception."""
    if issubclass(kind, KeyboardInterrupt):
        return "interrupted"
    if issubclass(kind, MemoryError) or kind.__name__ == "OutOfMemoryError":
        return "out_of_memory"
    shown = issubclass(kind, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)
    return "out_of_memory" if shown else "error"


def _main_frame() -> FrameType | None:
    """Return the frame of the main module, or of the module runpy that runs it; None in an embedded interpreter."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented in spite of its name
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") not in ("__main__", "runpy"):
        return None
    # A function would keep its local variables alive.
    return frame if frame.f_code.co_name in ("<module>", "_run_module_as_main") else None
