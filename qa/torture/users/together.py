"""All attacks of users without rights at once, for a minute: `python -m qa.torture --together`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qa.torture.fault import Watch
from qa.torture.scrape import Scrape
from qa.torture.subject import Setting, Subject, subject
from qa.torture.truth import Judge
from qa.torture.users.attacks import ATTACKS, attacked
from qa.torture.users.faults import LIMIT_BYTES, MAX_TASKS, local_addresses
from qa.torture.users.groups import memory_of, processes

_MAX_LATE_SECONDS = 5.0  # of the steps of the honest training
_MAX_STOP_SECONDS = 10.0  # TimeoutStopSec= of the unit
_MAX_START_SECONDS = 30.0
# Of the scraper: another site than those of the attackers, as of a Prometheus server on another machine.
_SCRAPER = "198.19.0.1"
_MIB = 1 << 20

# A training under the hook. It writes its steps, and the monotonic time after each of them.
_TRAINING = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open(sys.argv[1], "w") as out:
    for step in range(1, 1000000):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        print(step, time.monotonic(), file=out, flush=True)
        time.sleep(0.1)
"""


class Training:
    """A real training. `made` is its own count of steps, with times."""

    def __init__(self, run: Subject) -> None:
        self._file = run.folder / "steps"
        (run.folder / "train.py").write_text(_TRAINING)
        program = [str(Path(sys.executable).parent / "gpugauge"), "run", "--quiet", "--", sys.executable]
        self._process = subprocess.Popen(
            [*program, str(run.folder / "train.py"), str(self._file)],
            env={"GPUGAUGE_HOOK_SOCKET": run.hook, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def made(self) -> list[tuple[int, float]]:
        """Return all steps so far, and when each was made."""
        with contextlib.suppress(OSError):
            lines = self._file.read_text().rpartition("\n")[0].splitlines()
            return [(int(step), float(at)) for step, at in map(str.split, lines)]
        return []

    def shown(self, scrape: Scrape) -> int | None:
        """Return the steps in a scrape."""
        pid = str(self._process.pid)
        for labels, _ in scrape.of("torch_process_info"):
            if labels["pid"] == pid:
                return round(scrape.total("torch_steps_total", {"process": labels["process"]}))
        return None

    def late(self, scrape: Scrape) -> float:
        """Return for how long a step had been made that the scrape does not have; infinity if it does not have the
        training, or too many steps.
        """
        shown, made, answered = self.shown(scrape), self.made(), scrape.began + scrape.seconds
        if shown is None or shown > len(made) + 1:  # the last step may not be written yet
            return float("inf")
        return max([0.0, *(answered - at for _, at in made[shown : shown + 1] if at < answered)])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Usage:
    """The most memory of the daemon and its children in MiB, proportional and resident, and the most tasks."""

    def __init__(self, run: Subject) -> None:
        self._run, self._stop = run, threading.Event()
        self.proportional = self.resident = 0.0
        self.tasks = 0
        self._thread = threading.Thread(target=self._measure)

    def _measure(self) -> None:
        while not self._stop.wait(1.0):
            proportional, resident = memory_of(processes(self._run.pid))
            self.proportional, self.resident = max(self.proportional, proportional), max(self.resident, resident)
            self.tasks = max(self.tasks, self._run.limits.task_count() if self._run.limits else 0)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def together(seconds: float) -> tuple[dict[str, Any], list[str]]:
    """Return the row of the table, and a sentence for each figure that is not as required."""
    with _node() as (run, training), local_addresses(), contextlib.ExitStack() as stack:
        judge = Judge(run.truth, liars=True)
        with Watch(run, judge, interval=1.0, source=_SCRAPER) as watch:
            if watch.until(lambda s: judge.whole(s) and bool(training.shown(s)), 60) is None:
                raise SystemExit(f"the daemon or the training does not work: {run.log()}")
            first = len(watch.scrapes)
            usage = stack.enter_context(Usage(run))
            stack.enter_context(attacked(run, list(ATTACKS)))
            time.sleep(seconds)
        row = _row(watch.scrapes[first:], judge, training, usage)
        assert run.limits
        row["processes killed"] = run.limits.memory_events()["oom_kill"]
        row |= _stop_and_start(run, judge, training)
        return row, _failures(row, judge, run)


@contextlib.contextmanager
def _node() -> Iterator[tuple[Subject, Training]]:
    with subject(Setting(devices=2, users=True, memory=LIMIT_BYTES, tasks=MAX_TASKS)) as run:
        training = Training(run)
        try:
            yield run, training
        finally:
            training.end()


def _row(scrapes: list[Scrape], judge: Judge, training: Training, usage: Usage) -> dict[str, Any]:
    good = [scrape for scrape in scrapes if not scrape.error]
    ages = [_age(scrape) for scrape in good]
    return {
        "attacks": len(ATTACKS),
        "seconds": round(scrapes[-1].began - scrapes[0].began),
        "scrapes": len(scrapes),
        "lost": len(scrapes) - len(good),
        "worst ms": round(1000 * max(scrape.seconds for scrape in scrapes)),
        "not whole": sum(not judge.whole(scrape) for scrape in good),
        "wrong": sum(judge.wrong.values()),
        "oldest values s": round(max(ages), 1),
        "steps late s": round(max(training.late(scrape) for scrape in good), 1),
        "series, most": max(len(scrape.series) for scrape in good),
        "memory, MiB PSS": round(usage.proportional),
        "RSS": round(usage.resident),
        "tasks, most": usage.tasks,
    }


def _age(scrape: Scrape) -> float:
    """Return the age of the values when the answer had been read."""
    ended = time.time() - (time.monotonic() - scrape.began - scrape.seconds)
    return ended - (scrape.value("gpugauge_snapshot_timestamp_seconds") or 0.0)


def _stop_and_start(run: Subject, judge: Judge, training: Training) -> dict[str, Any]:
    """Stop the daemon while the attacks go on, and start another one."""
    began = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    try:
        run.process.wait(2 * _MAX_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return {"stopped after s": "never"}
    stopped, began = time.monotonic() - began, time.monotonic()
    left = run.limits.task_count() if run.limits else 0
    run.process = run.start()
    with Watch(run, Judge(run.truth, liars=True), interval=0.1, source=_SCRAPER) as watch:
        whole = watch.until(judge.whole, _MAX_START_SECONDS, began)
        steps = training.made()[-1][0]
        reports = watch.until(lambda scrape: (training.shown(scrape) or 0) >= steps, _MAX_START_SECONDS, began)
    return {
        "stopped after s": round(stopped, 1),
        "threads that no signal ends": left,
        "new daemon whole after s": "never" if whole is None else round(whole - began, 1),
        "its steps after s": "never" if reports is None else round(reports - began, 1),
    }


def _failures(row: dict[str, Any], judge: Judge, run: Subject) -> list[str]:
    limits = {
        "lost": 0,
        "not whole": 0,
        "wrong": 0,
        "processes killed": 0,
        "oldest values s": 10.0,
        "steps late s": _MAX_LATE_SECONDS,
        "memory, MiB PSS": LIMIT_BYTES / _MIB,
        "RSS": LIMIT_BYTES / _MIB,
        "tasks, most": MAX_TASKS,
        "stopped after s": _MAX_STOP_SECONDS,
        "new daemon whole after s": _MAX_START_SECONDS,
        "its steps after s": _MAX_START_SECONDS,
    }
    found = [
        f"all attacks at once: {key} is {row[key]}, and at most {limit} is allowed"
        for key, limit in limits.items()
        if isinstance(row.get(key, "never"), str) or row[key] > limit
    ]
    return [*found, *judge.wrong, *([run.log()[-3000:]] if found else [])]
