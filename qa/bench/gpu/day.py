"""What only a GPU can show, in the order of its worth: `make gpu-day`, `python -m qa.bench.gpu.day --out FOLDER`.

It ends in 9 minutes. Each step has a deadline, and its result is written when it ends (day.jsonl, day.md), so that a
run that is killed leaves all that it measured. Another run with the same folder does what is missing. `--rehearse`
takes the CPU and a simulated GPU in place of the card.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qa.bench.gpu.hookcheck import COMPILED, COST
from qa.bench.gpu.scrapes import Scrapes, process_of, samples, shown, verdicts
from qa.bench.report import Report

SECONDS = 525.0  # of a run, with the end of what still runs
_LEAST_SECONDS = 38.0  # left, for a training to begin
_MOST_SECONDS, _OVER = 60.0, 10.0  # of a training that hangs, and after the end
_VERDICTS = 4  # after the first step: the first is of less than an interval, and evidence takes three
_FIRST, _OTHER = 26.0, 3.5  # seconds of the first part at most, and of the others
_PARTS = ("bad", "good", "bad", "good")
_ANSWER = 20.0  # seconds for the end of a part
_BUILD = 40.0  # seconds for the model, with CUDA
_DAEMON = 20.0  # seconds until the daemon answers
_REHEARSED = 10.0  # factor of the deadlines of a rehearsal: the machine may be slow
_CGROUP = Path("/sys/fs/cgroup/gpugauge-day")
_SPIN = """
import os, torch
on_gpu = os.environ.get("BENCH_DEVICE", "cuda") == "cuda"
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) if on_gpu else torch.randn(64, 64)
while True:
    a @ a
    if on_gpu: torch.cuda.synchronize()
"""
TRAININGS = (
    *(("healthy", "conv"), ("healthy", "transformer"), ("underfilled", "transformer"), ("memory_pressure", "conv")),
    *(("host_bound", "transformer"), ("transfer", "conv"), ("data_loading", "transformer"), ("offloaded", "conv")),
    *(("precision_unused", "transformer"), ("contention", "transformer"), ("waiting_elsewhere", "conv")),
    *(("underfilled", "conv"), ("memory_pressure", "transformer"), ("host_bound", "conv"), ("transfer", "transformer")),
    *(("precision_unused", "conv"), ("data_loading", "conv"), ("offloaded", "transformer"), ("contention", "conv")),
    *(("waiting_elsewhere", "transformer"), ("cpu_limited", "conv"), ("cpu_limited", "transformer")),
)
"""In the order of their worth: each cause with one model, then with the other one."""

BESIDE = ("model_on_cpu", "no_visible_device")  # they leave the GPU idle, and run beside the recording


class Program:
    """A program in a session of its own, which prints lines of JSON."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], errors: Path) -> None:
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.until = float("inf")  # monotonic, after which nothing is waited for
        self.patience = 1.0  # factor of the times to wait
        self._errors, self._ended = errors, False
        self._begin = errors.stat().st_size if errors.exists() else 0
        with errors.open("a") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=environ,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    self.lines.put(json.loads(line))
        self.lines.put(None)

    def say(self, word: str) -> None:
        """Write a line to the input of the program."""
        with contextlib.suppress(OSError):
            assert self.process.stdin
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()

    def heard(self, part: str, seconds: float) -> dict[str, Any]:
        """Return the next line of a part. Raises TimeoutError, and RuntimeError if the program ends before."""
        until = min(self.until, time.monotonic() + self.patience * seconds)
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no {part} in time: {self.last_error()}") from None
            if line is None:
                self.lines.put(None)
                raise RuntimeError(f"ended before {part}: {self.last_error()}")
            if line.get("part") == part:
                return line

    def last_error(self) -> str:
        """Return the last line of the errors but those of the hook."""
        with self._errors.open() as file:
            file.seek(self._begin)
            lines = [line for line in file.read().splitlines() if line and not line.startswith("gpugauge: ")]
        return lines[-1][:300] if lines else f"status {self.process.poll()}"

    def send(self, number: int) -> None:
        """Send a signal to the program and all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill the program and all that it started."""
        if not self._ended:  # another one may have its pid
            self.send(signal.SIGKILL)
            self.process.wait()
            self._reader.join(1.0)
            with contextlib.suppress(OSError):
                assert self.process.stdin
                self.process.stdin.close()
        self._ended = True


class Day:
    """A run: its folder, its daemon, and what was measured."""

    def __init__(self, out: Path, seconds: float, *, rehearse: bool) -> None:
        self.out, self.rehearse, self.until = out, rehearse, time.monotonic() + seconds
        self.folder = Path(tempfile.mkdtemp(prefix="day-"))  # the path of a socket is short
        lines = map(json.loads, self._file.read_text().splitlines() if self._file.exists() else ())
        self.results = list({(r["name"], r["model"]): r for r in lines}.values())
        self.programs: list[Program] = []
        self.patience = _REHEARSED if rehearse else 1.0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environ = os.environ | {"GPUGAUGE_HOOK_SOCKET": str(self.folder / "hook.sock")}
        if rehearse:
            self.environ |= {"BENCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
        self.scrapes = Scrapes(f"http://{self.address}/metrics")
        self.daemon: Program | None = None

    @property
    def _file(self) -> Path:
        return self.out / "day.jsonl"

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def done(self, name: str, model: str = "") -> bool:
        """Whether something was measured before."""
        return any((r["name"], r["model"]) == (name, model) and "failed" not in r for r in self.results)

    def start(self, command: Sequence[str], log: str = "errors.log", **environ: str) -> Program:
        """Start a program that ends with the run."""
        program = Program(command, self.environ | environ, self.out / log)
        program.patience, program.until = self.patience, self.until + _OVER
        self.programs.append(program)
        return program

    def hooked(self, *arguments: str, **environ: str) -> Program:
        """Start a Python program under the hook."""
        python = sys.executable
        return self.start([python, "-m", "gpugauge", "run", "--", python, *arguments], "errors.log", **environ)

    def served(self) -> bool:
        """Return whether the daemon answers; it is started where it does not run."""
        if self.daemon and self.daemon.process.poll() is None:
            return True
        flags = [f"--web.listen-address={self.address}", f"--hook.socket={self.folder}/hook.sock"]
        flags += ["--simulate=h200-gpm"] if self.rehearse else [f"--driver.state-file={self.folder}/gpus.json"]
        before = len(self.scrapes.pages)
        self.daemon = self.start([sys.executable, "-m", "gpugauge", "serve", *flags], "daemon.log")
        until = time.monotonic() + self.patience * _DAEMON
        while time.monotonic() < until and self.daemon.process.poll() is None:
            if len(self.scrapes.pages) > before:
                return True
            time.sleep(0.3)
        return False

    def measure(self, name: str, model: str, seconds: float, of: Callable[[], dict[str, Any]]) -> None:
        """Do a step and write its result, or why there is none."""
        if self.done(name, model):
            return
        result: dict[str, Any] = {"name": name, "model": model, "date": time.strftime("%Y-%m-%d")}
        began = time.monotonic()
        if self.left < seconds:
            result["failed"] = "not reached"
        else:
            if not self.served():
                assert self.daemon
                result["daemon"] = self.daemon.last_error()
            try:
                result |= of()
            except Exception as error:  # noqa: BLE001  (a step must not cost the others)
                result["failed"] = f"{type(error).__name__}: {error}"
        result["seconds"] = round(time.monotonic() - began, 1)
        result["GPU"] = next((labels["name"] for labels, _ in samples(self.scrapes.page, "gpu_info")), "none")
        print(f"{self.left:5.0f} s left  {name} {model} {result.get('failed', 'measured')}", flush=True)
        self.results = [r for r in self.results if (r["name"], r["model"]) != (name, model)] + [result]
        with self._file.open("a") as file:
            file.write(json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())
        (self.out / "day.md").write_text(tables(self.results))

    def keep(self, page: str) -> None:
        """Append a page to the file of pages."""
        with gzip.open(self.out / "pages.gz", "at") as file:
            file.write(page)

    def end(self) -> None:
        """Kill all programs."""
        self.scrapes.stop()
        for program in self.programs:
            program.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            _CGROUP.rmdir()


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Return the results as tables."""
    trained = [row(r) for r in results if "shown" in r]
    others = [
        {"step": f"{r['name']} {r['model']}", "result": r.get("failed") or json.dumps(r.get("measured"))}
        for r in results
        if "shown" not in r
    ]
    return "\n\n".join(Report("", rows, "").markdown(heading=False) for rows in (trained, others) if rows) + "\n"


def row(result: dict[str, Any]) -> dict[str, object]:
    """Return what was planted, stated and measured in a training."""
    name, found = result["name"], result["shown"]
    expected = None if name == "healthy" else name
    state, cause = found["state"], found["cause"]
    gain, (least, most) = found["gain"].get(cause), (found[bound].get(cause) for bound in ("lower", "upper"))
    measured = result.get("speedup")
    between = f"{result['speedup from']:.2f} to {result['speedup to']:.2f}" if measured else ""
    within = gain and measured and result["speedup to"] >= least and result["speedup from"] <= most
    return {
        "planted": f"`{name}`",
        "model": result["model"],
        "GPU": result["GPU"],
        "stated": ", ".join(f"`{word}`" for word in (state, cause) if word),
        "named": "yes" if cause == expected else "no",
        "lost to it": f"{found['lost'].get(cause, 0.0):.0%}" if cause else "",
        "expected gain": f"{gain:.2f} ({least:.2f} to {most:.2f})" if gain else "",
        "measured gain": f"{measured:.2f} ({between})" if measured else "",
        "within": ("yes" if within else "no") if gain and measured else "",
    }


def recording(day: Day) -> dict[str, Any]:
    """Record NVML, and what is stated of trainings that do not use the GPU."""
    beside = {name: training(day, name, "conv") for name in BESIDE}
    for program in beside.values():
        program.say("bad")
    command = [sys.executable, "-m", "qa.gpu.check", f"--recordings={day.out}", f"--results={day.out}"]
    check = day.start([*command, "--seconds=8", *(["--simulate=h200-gpm"] if day.rehearse else [])])
    began = time.monotonic()
    try:
        check.process.wait(min(day.patience * 70.0, max(0.0, day.left)))
    except subprocess.TimeoutExpired:
        check.end()
    for name, program in beside.items():
        day.measure(name, "conv", 0.0, partial(stated, day, program, began))
    if check.process.returncode:
        raise RuntimeError(check.last_error())
    return {"measured": {"status": 0}}


def stated(day: Day, program: Program, began: float) -> dict[str, Any]:
    """Return what is stated of a training, some time after its begin."""
    program.heard("built", _BUILD)
    time.sleep(max(0.0, min(day.left, began + _FIRST - time.monotonic())))
    page = day.scrapes.page
    day.keep(page)
    program.end()
    return {"shown": shown(page, process_of(page, program.process.pid))}


def training(day: Day, cause: str, model: str) -> Program:
    """Start a training, which waits for a word when torch is imported."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if cause == "no_visible_device" else {}
    return day.hooked("-m", "qa.bench.gpu.trainings", cause, model, **hidden)


@contextlib.contextmanager
def outside(day: Day, cause: str, model: str, pid: int) -> Iterator[Callable[[str], Any]]:
    """Yield what plants a cause from outside of a training, and removes it. Raises OSError where that cannot be."""
    if cause == "cpu_limited":
        if not (_CGROUP.parent / "cgroup.controllers").exists():
            raise OSError("no cgroup v2")
        with contextlib.suppress(OSError):
            (_CGROUP.parent / "cgroup.subtree_control").write_text("+cpu")
        _CGROUP.mkdir(exist_ok=True)
        (_CGROUP / "cgroup.procs").write_text(str(pid))
        yield lambda word: (_CGROUP / "cpu.max").write_text("20000 100000" if word == "bad" else "max 100000")
        return
    if cause != "contention":
        yield lambda _: None
        return
    # A program without the hook beside the conv net, a training with it beside the transformer.
    neighbour = training(day, "healthy", "conv") if model == "transformer" else day.start([sys.executable, "-c", _SPIN])
    try:
        if model == "transformer":
            neighbour.say("bad")
            neighbour.heard("built", _BUILD)
        yield lambda word: neighbour.send(signal.SIGCONT if word == "bad" else signal.SIGSTOP)
    finally:
        neighbour.end()


def planted(day: Day, cause: str, model: str, program: Program) -> dict[str, Any]:
    """Train with and without a fault in turn; return the rates of the parts, and what was stated of the first."""
    program.until = min(program.until, time.monotonic() + day.patience * _MOST_SECONDS)
    program.heard("imported", _BUILD)
    parts: list[tuple[str, dict[str, Any]]] = []
    page = ""
    with outside(day, cause, model, program.process.pid) as plant:
        plant(_PARTS[0])
        program.say(_PARTS[0])
        built = program.heard("built", _BUILD)
        for word, following in zip(_PARTS, (*_PARTS[1:], "end"), strict=True):
            if page:
                time.sleep(_OTHER)
            else:
                page = judged(day, program.process.pid)
            plant(following)
            program.say(following)
            parts.append((word, program.heard(word, _ANSWER)))
    day.keep(page)
    rates = {word: [facts["rate"] for name, facts in parts if name == word] for word in ("bad", "good")}
    return {
        "scale": built["scale"],
        "parts": parts,
        "shown": shown(page, process_of(page, program.process.pid)),
        "speedup": sum(rates["good"]) / sum(rates["bad"]),
        "speedup from": min(rates["good"]) / max(rates["bad"]),
        "speedup to": max(rates["good"]) / min(rates["bad"]),
    }


def judged(day: Day, pid: int) -> str:
    """Wait until enough verdicts are of a training alone, and return the page with the last one."""
    until, seen = time.monotonic() + day.patience * _FIRST, set[float]()
    while time.monotonic() < until and len(seen) <= _VERDICTS:
        time.sleep(0.5)
        page = day.scrapes.page
        process = process_of(page, pid)
        spent = verdicts(page, process) if process else None
        if spent is not None and shown(page, process)["state"] not in (None, "starting"):
            seen.add(round(spent, 3))
    return day.scrapes.page


def cost(day: Day) -> dict[str, Any]:
    """Measure the cost of the hook in short steps."""
    program = day.hooked("-c", COST)
    found = {}
    with contextlib.suppress(RuntimeError):  # the second load may be missing
        for name in ("0.5 ms", "2 ms"):
            found[name] = program.heard(name, 60.0)
    program.end()
    if not found:
        raise RuntimeError(program.last_error())
    return {"measured": found}


def compiled(day: Day) -> dict[str, Any]:
    """Compile a model with and without the hook."""
    found: dict[str, Any] = {}
    for hooked in (False, True):
        program = day.hooked("-c", COMPILED) if hooked else day.start([sys.executable, "-c", COMPILED])
        found["with the hook" if hooked else "without"] = program.heard("end", 50.0)
        program.end()
    return {"measured": found}


def trainings(day: Day, order: Sequence[tuple[str, str]]) -> None:
    """Measure trainings; the next one imports torch while one is measured."""
    waiting = [one for one in order if not day.done(*one)]
    following = training(day, *waiting[0]) if waiting else None
    for index, (cause, model) in enumerate(waiting):
        program = following
        assert program
        more = index + 1 < len(waiting) and day.left > 2 * _LEAST_SECONDS
        following = training(day, *waiting[index + 1]) if more else None
        day.measure(cause, model, _LEAST_SECONDS, partial(planted, day, cause, model, program))
        program.end()
        if following is None and index + 1 < len(waiting):
            for name, of in waiting[index + 1 :]:
                day.measure(name, of, float("inf"), dict)
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all steps; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a simulated GPU")
    parser.add_argument("--only", nargs="*", help="of the steps, by name")
    options = parser.parse_args(arguments)
    missing = [
        name for name in ("torch", "click", "prometheus_client", "pydantic", "pynvml") if find_spec(name) is None
    ]
    if missing:
        print(f"missing packages: {' '.join(missing)}; PACKAGES=FOLDER names a folder that has them", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    day = Day(options.out.resolve(), options.seconds, rehearse=options.rehearse)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    wanted = [one for one in TRAININGS if not options.only or one[0] in options.only]
    first = len({cause for cause, _ in TRAININGS if cause != "cpu_limited"})  # each with one model, healthy with both
    try:
        for name, seconds, of in (("recording", 90.0, recording), ("cost", 70.0, cost)):
            if not options.only or name in options.only:
                day.measure(name, "", seconds, partial(of, day))
        trainings(day, wanted[: first + 1])
        if not options.only or "compiled" in options.only:
            day.measure("compiled", "", 105.0, partial(compiled, day))
        trainings(day, wanted[first + 1 :])
    finally:
        day.end()
    print((options.out / "day.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
