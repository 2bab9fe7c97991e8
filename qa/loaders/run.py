"""Runs a drawn loader beside a daemon, and again as the daemon recommends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.e2e.programs import GPUGAUGE, Daemon

from qa.bench.gpu.scrapes import parsed
from qa.loaders.draw import FILE_BYTES, FILES, Loader
from qa.loaders.measure import Measured, Step, measured

PROGRAM = Path(__file__).with_name("program.py")
REMOVED = 0.8  # share of the planted wait that the recommended number removes
NO_HELP = 1.1  # factor of the step rate that more workers do not reach where they do not help
GAIN_ERROR = 0.15
SETTLED = 8  # seconds after the first diagnosis
AGAIN = 14.0  # seconds of the second run
SMALL = 0.05  # share of the time; shorter waits are no finding
_NAMES = {
    "training_loader_workers_recommended": "recommended",
    "training_loader_expected_speedup_ratio": "speedup",
    "training_loader_expected_speedup_lower_ratio": "lower",
}
_GAINS = [f"training_expected_speedup{bound}_ratio" for bound in ("_lower", "", "_upper")]


Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Labels and values by metric."""


@dataclass(frozen=True)
class Reported:
    """The last diagnosis of the daemon; no reason without one."""

    reason: str = ""
    recommended: int | None = None
    speedup: float | None = None
    lower: float | None = None
    gains: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)  # lower, expected, upper by cause


@dataclass(frozen=True)
class Result:
    """What became of one loader. `verdict` is right, absent or wrong."""

    loader: Loader
    before: Measured
    reported: Reported
    tried: int | None
    after: Measured | None
    verdict: str

    @property
    def raw(self) -> bool:
        """Whether the clock alone decided the verdict."""
        return self.before.raw and (self.after is None or self.after.raw)


def write_files(folder: Path) -> None:
    """Write the files of cold loaders to storage."""
    folder.mkdir()
    content = os.urandom(FILE_BYTES)
    for number in range(FILES):
        with (folder / str(number)).open("wb") as file:
            file.write(content)
    os.sync()


def command(daemon: Daemon, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a program under the hook, and its environment."""
    environment = {**os.environ, "GPUGAUGE_HOOK_SOCKET": str(daemon.socket), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(PROGRAM.parents[2])
    return [GPUGAUGE, "run", "--quiet", "--", sys.executable, str(PROGRAM), *words], environment


def run(loader: Loader, daemon: Daemon) -> tuple[Measured, Reported]:
    """Run the program of a loader under the hook; return what it measured and what the daemon reported last."""
    words, environment = command(daemon, json.dumps(asdict(loader)))

    def bind() -> None:
        if loader.cpus:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: loader.cpus])

    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=bind,  # noqa: PLW1509 - this program has one thread
    )
    reported, decided = Reported(), 0
    while process.poll() is None and decided < SETTLED:
        time.sleep(1.0)
        found = read(parsed(daemon.metrics()), process.pid)
        reported = found if found is not None else reported
        decided += bool(reported.reason or reported.gains)
    process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return of_steps(loader, json.loads(output.splitlines()[-1])["steps"]), reported


def of_steps(loader: Loader, steps: Sequence[Sequence[float]]) -> Measured:
    """Return what a program measured, by its steps."""
    return measured([Step(*values) for values in steps], loader.workers, loader.cpus or len(os.sched_getaffinity(0)))


def read(page: Samples, pid: int) -> Reported | None:
    """Return the diagnosis of a process by the daemon's page, None if it does not know it."""
    known = page.get("torch_process_info", ())
    process = next((labels["process"] for labels, _ in known if labels["pid"] == str(pid)), None)
    if process is None:
        return None
    of = {name: [one for one in samples if one[0].get("process") == process] for name, samples in page.items()}
    reason = next((labels["reason"] for labels, _ in of.get("training_loader_limited_by", ())), "")
    values = {short: next((value for _, value in of.get(name, ())), None) for name, short in _NAMES.items()}
    recommended = values.pop("recommended")
    bounds = [{labels["cause"]: value for labels, value in of.get(name, ())} for name in _GAINS]
    gains = {cause: (bounds[0][cause], bounds[1][cause], bounds[2][cause]) for cause in bounds[0]}
    return Reported(reason, None if recommended is None else int(recommended), **values, gains=gains)


def judge(loader: Loader, daemon: Daemon) -> Result:
    """Run a loader, apply the recommendation, and compare."""
    before, reported = run(loader, daemon)
    if not reported.reason or reported.recommended is None:
        verdict = "right" if before.wait < SMALL * before.step else "absent"
        return Result(loader, before, reported, None, None, verdict)
    more = reported.recommended > loader.workers
    tried = reported.recommended if more else 2 * loader.workers + 1
    after, _ = run(replace(loader, workers=tried, generator=False, seconds=AGAIN), daemon)
    if not more:
        verdict = "right" if before.alone < NO_HELP * after.alone else "wrong"
    elif loader.kind == "one_core":
        # The CPU stays the limit, so the wait does not end: the gain is the expected one.
        gain = before.alone / after.alone
        verdict = "right" if abs(gain / (reported.speedup or 1.0) - 1.0) < GAIN_ERROR else "wrong"
    else:
        verdict = "right" if 1.0 - after.wait / before.wait >= REMOVED else "wrong"
    return Result(loader, before, reported, tried, after, verdict)
