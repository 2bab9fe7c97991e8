"""Check of a real GPU with everything that gpugauge reads: `python -m qa.gpu.check`, a step of `make gpu-day`.

It prints each field with its value or its error, and the time of each call; compares with nvidia-smi; examines the
clock and the gaps of the samples; measures a known load; and writes the results and a recording, which replay.py
replays. It needs a GPU, or `--simulate` with a scenario for a test of the check itself. Where all GPUs are of AMD, the
files of amdgpu are copied, see amdfiles.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpugauge.base import isolated
from gpugauge.driver.api import DEVICE_FIELDS, DriverError, DriverFacts, Group
from gpugauge.driver.codes import ENGINES
from gpugauge.driver.frames import unpacked
from gpugauge.driver.nvidia.fieldvalues import FIELD_VALUES
from gpugauge.driver.nvidia.nvml import Nvml, use_library, used_library
from qa.gpu import amdfiles
from qa.gpu.recording import Recorder

GROUPS: tuple[Group, ...] = ("static", "fast", "profiling", "normal", "slow", "processes", "mig")
_COMPARED = {"utilization.gpu": ("utilization_percent", 1.0), "power.draw": ("power_milliwatts", 1e3)} | {
    "memory.used": ("memory_used_bytes", float(1 << 20))
}
# Keeps the first GPU busy for 0.7 s and idle for 0.8 s; prints the busy periods in CLOCK_MONOTONIC.
_LOAD = """
import json, sys, time
import torch
a = torch.randn(8192, 8192, device="cuda:0", dtype=torch.float16)
(a @ a).sum().item()
spans, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    begin = time.monotonic()
    while time.monotonic() < begin + 0.7:
        for _ in range(4):
            b = a @ a
        torch.cuda.synchronize()
    spans.append([begin, time.monotonic()])
    time.sleep(0.8)
print(json.dumps(spans))
"""


class Device:
    """The readings of a GPU over all rounds."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.values: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        self.samples: dict[str, dict[int, int]] = {}  # by engine: percent by the time of the driver in microseconds
        # Unix time, seconds since boot, monotonic time, and the time of the newest sample of the first ring.
        self.clocks: list[tuple[float, float, float, int]] = []

    def read(self, nvml: Nvml) -> None:
        """Read everything once. Raises DriverError if the GPU is gone."""
        values, errors = nvml.read(self.index, GROUPS)
        for found in values.values():
            self.values |= found
        self.errors |= errors
        samples, errors = nvml.samples(self.index)
        self.errors |= errors
        rings = {engine: unpacked(samples[engine]) for engine in ENGINES if engine in samples}
        for engine, ring in rings.items():
            self.samples.setdefault(engine, {}).update(ring)
        if rings.get("gpu"):
            uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
            self.clocks.append((time.time(), uptime, time.monotonic(), rings["gpu"][-1][0]))

    def rows(self) -> Iterable[tuple[str, str]]:
        """Yield every field with its value or its error."""
        for field in sorted(DEVICE_FIELDS | {row.field for row in FIELD_VALUES}):
            if field in self.values:
                yield field, json.dumps(self.values[field], default=str)
            else:
                yield field, self.errors.get(field, "not reported")

    def clock(self) -> dict[str, Any]:
        """Return the clock of the samples, their period and their gaps."""
        stamps = sorted(stamp for stamp in self.samples.get("gpu", {}) if stamp)
        gaps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
        if not gaps or not self.clocks:
            return {"ring": "none"}
        unix, uptime, _, stamp = self.clocks[-1]
        distance = {"epoch": abs(unix - stamp / 1e6), "uptime": abs(uptime - stamp / 1e6)}
        period = statistics.median(gaps)
        return {
            "clock": min(distance, key=lambda name: distance[name]),
            "behind_seconds": round(min(distance.values()), 3),
            "period_seconds": round(period, 4),
            "longest_gap_seconds": round(max(gaps), 4),
            "holes": sum(gap > 2.5 * period for gap in gaps),
            "samples": len(stamps),
            "percents": sorted(set(self.samples["gpu"].values())),
        }

    def busy_seconds(self, begin: float, end: float) -> tuple[float, float]:
        """Return busy and observed seconds between two times of CLOCK_MONOTONIC; each sample of the first ring counts
        for the time since the sample before.
        """
        if not self.clocks:
            return 0.0, 0.0
        # The newest sample is at most a period old: the smallest difference is that of the clocks.
        offset = min(monotonic - stamp / 1e6 for _, _, monotonic, stamp in self.clocks)
        samples = sorted((stamp / 1e6 + offset, percent) for stamp, percent in self.samples["gpu"].items())
        pairs = [(b[0] - a[0], b[1]) for a, b in pairwise(samples) if begin <= b[0] <= end]
        return sum(dt * percent for dt, percent in pairs) / 100, sum(dt for dt, _ in pairs)


def watch(nvml: Nvml, devices: list[Device], seconds: float) -> list[str]:
    """Read every GPU each second; return the failures."""
    failures: dict[int, str] = {}
    end = time.monotonic() + seconds
    while True:
        for device in devices:
            failure = _failure(nvml, device)
            if failure:
                failures[device.index] = failure
        if time.monotonic() >= end:
            return [f"GPU {index}: {failure}" for index, failure in failures.items()]
        time.sleep(1.0)


def _failure(nvml: Nvml, device: Device) -> str | None:
    try:
        device.read(nvml)
    except DriverError as error:
        return str(error)
    return None


def against_nvidia_smi(devices: list[Device]) -> list[dict[str, Any]]:
    """Return the values of nvidia-smi beside ours, read shortly after them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = ",".join(_COMPARED)
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lines = [] if done.returncode else done.stdout.splitlines()
    found = []
    for device, line in zip(devices, lines, strict=False):
        for (name, (field, unit)), theirs in zip(_COMPARED.items(), line.split(", "), strict=True):
            ours = device.values.get(field)
            found.append(
                {
                    "gpu": device.index,
                    "quantity": name,
                    "nvidia-smi": theirs,
                    "ours": None if ours is None else ours / unit,
                }
            )
    return found


def against_a_load(nvml: Nvml, seconds: float) -> dict[str, Any]:
    """Return the busy seconds of the first GPU, measured with its ring and by the load itself."""
    program = subprocess.Popen(
        isolated.source_command(_LOAD, str(seconds)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=isolated.FOLDER,
    )
    device = Device(0)
    while program.poll() is None:
        device.read(nvml)
        time.sleep(1.0)
    out, errors = program.communicate()
    if program.returncode:
        return {"skipped": errors.strip().splitlines()[-1] if errors.strip() else "the load failed"}
    device.read(nvml)
    spans = json.loads(out)
    busy, observed = device.busy_seconds(spans[0][0] - 0.5, spans[-1][1] + 0.5)
    truth = sum(end - begin for begin, end in spans)
    return {"busy_seconds": round(busy, 3), "true_seconds": round(truth, 3), "observed_seconds": round(observed, 3)}


def check(nvml: Nvml, facts: DriverFacts, seconds: float, *, real: bool) -> dict[str, Any]:
    """Check every GPU; print and return the results."""
    devices = [Device(index) for index in range(facts.device_count)]
    nvml.calls.take()
    failures = watch(nvml, devices, seconds)
    latencies = {
        function: {"calls": number, "mean_us": round(1e6 * total / number, 1), "longest_us": round(1e6 * longest, 1)}
        for function, (number, total, longest) in sorted(nvml.calls.take().items())
    }
    for device in devices:
        _print(f"\nGPU {device.index}: {device.values.get('name')}")
        for field, value in device.rows():
            _print(f"  {field:36} {value}")
        _print(f"  samples: {device.clock()}")
    _print("\nmicroseconds per call")
    for function, figures in latencies.items():
        _print(
            f"  {function:48} {figures['mean_us']:>10} mean {figures['longest_us']:>10} longest {figures['calls']:>6}"
        )
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "driver": facts.driver_version,
        "gpus": [{"name": c.values.get("name"), "fields": dict(c.rows()), "samples": c.clock()} for c in devices],
        "calls": latencies,
        "failures": failures,
        "nvidia_smi": against_nvidia_smi(devices) if real else [],
        "load": against_a_load(nvml, seconds) if real and devices else {},
    }
    for name in ("failures", "nvidia_smi", "load"):
        _print(f"{name}: {result[name] or 'none'}")
    return result


def main(arguments: list[str]) -> int:
    """Run the check; return the exit status, 1 without a driver."""
    parser = argparse.ArgumentParser(prog="qa.gpu.check", description="check a real GPU")
    parser.add_argument("--simulate", metavar="NAME", help="a scenario or a recording in place of the driver")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the readings, and of the load")
    parser.add_argument("--recordings", type=Path, default=Path("tests/recordings"), help="folder for the recording")
    parser.add_argument("--results", type=Path, default=Path("qa/bench/gpu"), help="folder for the results")
    options = parser.parse_args(arguments)
    if options.simulate:
        from gpugauge.simulator.device.world import World  # noqa: PLC0415  (needs pydantic)
        from gpugauge.simulator.nvml.library import Library  # noqa: PLC0415  (likewise)
        from gpugauge.simulator.scenario.load import load_scenario  # noqa: PLC0415  (likewise)

        use_library(Library(World(load_scenario(options.simulate).simulation())))
    nvml = Nvml()
    try:
        nvml.open()  # loads the library, which the recorder then wraps
        facts = nvml.facts()
        nvml.close()
    except DriverError as error:
        try:
            found = {} if options.simulate else amdfiles.record(options.recordings / "amd", options.seconds)
        except DriverError:
            found = {}
        for address, fields in found.items():
            _print(f"\nGPU {address}: {fields.get('name')}")
            for field in sorted(fields):
                _print(f"  {field:36} {json.dumps(fields[field], default=str)}")
        if not found:
            _print(f"no GPU to check: {error}")
        return 0 if found else 1
    stem = f"{time.strftime('%Y-%m-%d')}-{facts.driver_version}{'-simulated' if options.simulate else ''}"
    for folder in (options.recordings, options.results):
        folder.mkdir(parents=True, exist_ok=True)
    recording = options.recordings / f"{stem}.jsonl"
    with recording.open("w", encoding="utf-8") as file:
        use_library(Recorder(used_library(), file, facts.driver_version or "unknown"))
        nvml.open()
        try:
            result = check(nvml, nvml.facts(), options.seconds, real=not options.simulate)
        finally:
            nvml.close()
    figures = options.results / f"gpu-check-{stem}.json"
    figures.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _print(f"\nrecording: {recording}\nfigures: {figures}")
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
