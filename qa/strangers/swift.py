"""Runs drawn programs without their sleeps, and compares the hook's own counts: python -m qa.strangers.swift.

Each program runs in a fork of a process that has torch and the hook loaded. Its time is the CPU time that it used and
what it has slept, so that the load of the machine changes nothing. There is no daemon: states, ends and whatever needs
another process are left to `qa.strangers`, which runs a seed as it is. A program that this cannot run is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpugauge.wire.record import BATCHES, PHASE, PHASES, SAMPLES, SINCE, SPENT, STEPS, TOKENS, WAITED
from qa.strangers.compare import Statement, statements
from qa.strangers.draw import Program, arguments, draw, seeds_of
from qa.strangers.observe import Poll
from qa.strangers.parallel import FRAMEWORKS
from qa.strangers.timeline import Timeline, read

LIMIT = 60  # seconds of real time
# The sleeps of loader workers are short instead: their process waits for them really.
_SHORTENED = 50
_real_sleep, _real_time = time.sleep, time.time()
_slept = 0.0
# Frameworks are slow to start. Where another thread loads ahead, its sleeps would be those of the training.
_LEFT_OUT = {*(whole.name for whole in FRAMEWORKS), "prefetch", "phase load", "waiting"}


def _now() -> float:
    return 1000.0 + _slept + time.process_time()


def _sleep(seconds: float) -> None:
    global _slept  # noqa: PLW0603 - there is one time in a process
    info = sys.modules["torch"].utils.data.get_worker_info()
    if info is None:
        _slept += seconds
        _real_sleep(0)
    else:
        _real_sleep(seconds / _SHORTENED)


async def _sleep_async(seconds: float, result: Any = None, *, _yield: Any = asyncio.sleep) -> Any:
    _sleep(seconds)
    return await _yield(0, result)


def _forked() -> None:
    global _slept  # noqa: PLW0603 - the CPU time of a child begins at zero
    _slept = _before_fork[0] - 1000.0


_before_fork = [0.0]


def _replace_time() -> None:
    """Replace the functions of time, before the hook and the programs take them."""
    os.register_at_fork(before=lambda: _before_fork.__setitem__(0, _now()), after_in_child=_forked)
    functions: dict[str, Any] = dict.fromkeys(("monotonic", "perf_counter"), _now)
    functions |= dict.fromkeys(("monotonic_ns", "perf_counter_ns"), lambda: int(_now() * 1e9))
    functions |= {"time": lambda: _real_time + _now(), "sleep": _sleep}
    for name, function in functions.items():
        setattr(time, name, function)
    setattr(asyncio, "sleep", _sleep_async)  # noqa: B010 - a function of another type


def _observer() -> Any:
    return sys.modules["gpugauge.hook.install"].observer


def _values() -> dict[str, float]:
    """Return what the hook has counted, as the daemon shows it."""
    observer = _observer()
    words, purposes = observer.record.words, observer.purposes
    found: dict[str, float | None] = {
        "torch_steps_total": words[STEPS] or None,
        "torch_batches_total": words[BATCHES] or None,
        "torch_samples_total": purposes.counted(SAMPLES),
        "torch_tokens_total": purposes.counted(TOKENS),
        "gpugauge_hook_errors_total": observer.errors or None,
    }
    for place, phase in enumerate(PHASES):
        lasting = time.perf_counter_ns() - words[SINCE] if place == words[PHASE] else 0
        found[f"torch_phase_seconds_total {phase}"] = (words[SPENT + place] + lasting) / 1e9
        found[f"torch_data_wait_seconds_total {phase}"] = words[WAITED + place] / 1e9 or None
    return {name: value for name, value in found.items() if value is not None}


def _run(program: Program, folder: Path) -> None:
    """Run a program in this process, which it ends."""
    os.chdir(folder)
    out = os.open("output", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(program.environment, TRUTH=str(folder / "truth"))
    sys.path[0], sys.argv = str(folder), ["prog.py"]
    if (site := folder / "site/sitecustomize.py").exists():
        exec(site.read_text(), {})
    truth = importlib.import_module("truth")  # the copy beside the program
    note = truth.end

    def dump() -> None:
        observer = _observer()
        observer.state.count_unreported_step(time.perf_counter_ns())
        observer.purposes.close()
        found = {"ended": _now(), "values": _values()}
        (folder / "truth" / f"{os.getpid()}.json").write_text(json.dumps(found))

    def end(*reasons: str) -> None:
        note(*reasons)
        dump()
        os._exit(0)

    truth.__dict__["end"] = end
    runpy.run_path("prog.py", run_name="__main__")
    dump()
    os._exit(0)


def _start(program: Program, folder: Path) -> int:
    (folder / "truth").mkdir(parents=True)
    for name, source in {**program.files, "truth.py": Path(__file__).with_name("truth.py").read_text()}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.alarm(LIMIT)
        try:
            _run(program, folder)
        except BaseException:  # noqa: BLE001 - whatever the program raises
            (folder / "failed").write_text(traceback.format_exc())
        finally:
            os._exit(9)
    return pid


def _compared(folder: Path) -> Iterator[Statement]:
    for path in sorted((folder / "truth").glob("*.jsonl")):
        dumped = path.with_suffix(".json")
        if not dumped.exists():
            continue
        found = json.loads(dumped.read_text())
        events = read(path)[0]
        for event in events:
            event.pop("started", None)
        truth = Timeline(int(path.stem), events, found["ended"])
        values = {(name.partition(" ")[0], name.partition(" ")[2]): value for name, value in found["values"].items()}
        ended = found["ended"]
        yield from statements(truth, [Poll(ended, ended, values)])


def main() -> int:
    options = arguments("qa.strangers.swift", __doc__, at_once=2).parse_args()
    seeds = iter(seeds_of(options))
    _replace_time()
    # These take the functions of time.
    importlib.import_module("gpugauge.hook.arming").arm()
    importlib.import_module("torch").set_num_threads(1)
    base = Path(tempfile.mkdtemp(prefix="swift-"))
    running: dict[int, Program] = {}
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    while True:
        while len(running) < options.at_once and (seed := next(seeds, None)) is not None:
            program = draw(seed)
            if _LEFT_OUT & set(program.name.split(", ")):
                counts["left out"] += 1
                continue
            running[_start(program, base / str(seed))] = program
        if not running:
            break
        pid, status = os.wait()
        program = running.pop(pid)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        folder = base / str(program.seed)
        found = list(_compared(folder)) if status == 0 else []
        counts["programs compared" if found else "programs not compared"] += 1
        if not found:
            kinds[program.name.split(",")[0]] += 1
        counts.update(statement.verdict for statement in found)
        for wrong in (statement for statement in found if statement.verdict == "wrong"):
            name = f"{program.seed} ({program.name})"
            print(f"{name}: {wrong.name}: expected {wrong.expected}; reported {wrong.reported}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()), base)
    print("not compared:", dict(kinds))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
