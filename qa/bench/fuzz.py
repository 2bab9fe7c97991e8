"""Fuzzing of every reader of foreign input, with hundreds of thousands of nearly valid inputs.

`python -m qa.bench.fuzz [NAME …] [--inputs N] [--write]` runs the targets of qa/fuzz, each in a process of its own with
limited memory; --write writes docs/proof/reliability.md. With atheris (`pip install '.[fuzz]'`) the
inputs are guided by coverage, otherwise they are drawn from a fixed seed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from qa.bench import figures
from qa.bench.report import Report

INPUTS = 100_000
HANG_SECONDS = 30  # of one input, wall clock
MAX_ADDRESS_SPACE_BYTES = 2 << 30  # of a target's process
_MARKERS = "<!-- fuzz -->", "<!-- /fuzz -->"
_WARM_UP_SHARE = 0.2  # of the inputs; memory is compared from there on


@dataclass
class Found:
    """The result of one target. `blocks` are Python's allocated memory blocks, after the warm-up and at the end."""

    name: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest_ms: float = 0.0
    slowest: str = ""
    blocks: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    peak_mb: float = 0.0
    edges: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # the shortest input, by error and place

    def row(self) -> dict[str, str]:
        """Return the row of the table."""
        blocks = self.blocks[-1] - self.blocks[0] if len(self.blocks) > 1 else 0
        return {
            "what is read": self.name,
            "inputs": f"{self.inputs:,}",
            "taken": f"{100 * self.accepted / max(1, self.inputs):.0f} %",
            "seconds": f"{self.seconds:.0f}",
            "slowest, CPU ms": f"{self.slowest_ms:.0f}",
            "memory blocks a 1,000 inputs": f"{1000 * blocks / max(1.0, (1 - _WARM_UP_SHARE) * self.inputs):+.1f}",
            "descriptors": f"{self.descriptors[-1] - self.descriptors[0]:+d}" if self.descriptors else "-",
            "peak MB": f"{self.peak_mb:.0f}",
            "crashes": str(len(self.failures)),
        }


class _Run:
    """The run of one target, with its failures."""

    def __init__(self, name: str, inputs: int, folder: Path, stack: ExitStack) -> None:
        targets = import_module("qa.fuzz.targets").TARGETS
        self.target = next(target for target in targets if target.name == name)
        self.found, self._inputs = Found(name), inputs
        self._attempt = self.target.prepare(folder, stack)
        self._began = time.monotonic()
        self._random = Random(name)

    @property
    def over(self) -> bool:
        return self.found.inputs >= self._inputs

    def one(self, data: bytes) -> None:
        """Try one input, and record an exception as a failure."""
        found = self.found
        if found.inputs in {int(self._inputs * _WARM_UP_SHARE), self._inputs - 1}:
            self._record_memory()
        found.inputs += 1
        if found.inputs % 100 == 1:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        began = time.process_time()
        try:
            found.accepted += self.target.accepts(self._attempt, data)
        except Exception as error:  # noqa: BLE001  (every exception is a failure)
            self._note(f"{type(error).__name__} at {_place(error)}: {str(error)[:200]!r}", data)
        took = time.process_time() - began
        if 1000 * took > found.slowest_ms:
            found.slowest_ms, found.slowest = 1000 * took, repr(data[:500])
        if took > self.target.max_cpu_seconds:
            self._note("slow", data)

    def generate(self, seed: int) -> bytes:
        """Return the input with this number."""
        self._random.seed(seed)
        made: bytes = self.target.generate(self._random)
        return made

    def finish(self) -> Found:
        found = self.found
        found.seconds = time.monotonic() - self._began
        found.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return found

    def _record_memory(self) -> None:
        gc.collect()
        self.found.blocks.append(sys.getallocatedblocks())
        self.found.descriptors.append(len(list(Path("/proc/self/fd").iterdir())))

    def _note(self, failure: str, data: bytes) -> None:
        known = self.found.failures
        key = failure.partition(": ")[0]
        same = next((old for old in known if old.partition(": ")[0] == key), None)
        if same is None:
            known[failure] = repr(data)
        elif len(repr(data)) < len(known[same]):
            del known[same]
            known[failure] = repr(data)


def _place(error: BaseException) -> str:
    """Return the innermost line of our code in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "gpugauge" in frame.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _guided(run: _Run, done: Callable[[], None]) -> None:
    """Run atheris, which edits inputs that reached new code, by its own edits and ours. Does not return."""
    atheris = import_module("atheris")

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        made = run.generate(seed) if seed % 2 or not data else atheris.Mutate(data, len(data))
        return bytes(made[:size])

    def one(data: bytes) -> None:
        run.one(bytes(data))
        if run.over:
            done()

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(run.target.seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        flags = ["-seed=1", "-max_len=8192", "-len_control=0", f"-timeout={HANG_SECONDS}", "-rss_limit_mb=0"]
        atheris.Setup([sys.argv[0], *flags, corpus], one, custom_mutator=mutate)
        atheris.Fuzz()


@contextlib.contextmanager
def _instrumented(guided: bool) -> Iterator[None]:
    """Instrument modules imported inside the context, so that atheris records their coverage."""
    if not guided:
        yield
        return
    with import_module("atheris").instrument_imports(include=["gpugauge"]):
        yield


def child(name: str, inputs: int, guided: bool) -> None:
    """Run one target in this process, and print the result as JSON."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("tornado").propagate = True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with _instrumented(guided):
            run = _Run(name, inputs, folder, stack)

        def done() -> None:
            print(json.dumps(asdict(run.finish())), flush=True)
            stack.close()
            os._exit(0)

        if guided:
            _guided(run, done)
        while not run.over:
            run.one(run.generate(run.found.inputs))
        done()


def fuzz(name: str, inputs: int, guided: bool) -> Found:
    """Run one target in a process of its own."""
    command = [sys.executable, "-m", "qa.bench.fuzz", "--child", "--inputs", str(inputs), name]
    command += [] if guided else ["--unguided"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        return Found(name, failures={f"the process ended with {ended.returncode}": ended.stderr[-3000:]})
    found = Found(**json.loads(lines[-1]))
    edges = re.findall(r"cov: (\d+)", ended.stderr)
    found.edges = int(edges[-1]) if edges else 0
    return found


def table(rows: list[dict[str, Any]]) -> Report:
    return Report("Fuzzing", rows, "python -m qa.bench.fuzz")


def keep(found: Found, how: str) -> None:
    """Replace the row of an earlier run in the committed result."""
    known = {row["what is read"]: row for row in figures.read("fuzz")["tables"][0]["rows"]}
    known[found.name] = found.row() | {"chosen": how, "on": time.strftime("%Y-%m-%d")}
    names = [target.name for target in import_module("qa.fuzz.targets").TARGETS]
    figures.keep("fuzz", [table([known[name] for name in names if name in known])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="targets of qa/fuzz; all if none is named")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="for each target")
    parser.add_argument("--unguided", action="store_true", help="draw inputs from a fixed seed, without atheris")
    parser.add_argument("--write", action="store_true", help="write the table into docs/proof/reliability.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    guided = not options.unguided and find_spec("atheris") is not None
    if options.child:
        child(options.names[0], options.inputs, guided)
    targets = import_module("qa.fuzz.targets").TARGETS
    results = []
    for name in options.names or [target.name for target in targets]:
        found = fuzz(name, options.inputs, guided)
        results.append(found)
        if options.write:
            keep(found, "guided by coverage (atheris)" if guided else "drawn from a fixed seed")
        print(f"{name}: {found.inputs:,} inputs, {found.seconds:.0f} s, slowest {found.slowest_ms:.1f} ms", flush=True)
        for failure, data in found.failures.items():
            print(f"  {failure}\n    {data[:2000]}", flush=True)
    print(table([found.row() for found in results]).plain())
    if any(found.failures for found in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
