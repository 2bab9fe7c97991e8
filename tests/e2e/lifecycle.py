"""A daemon with two simulated GPUs and the lifecycle endpoints, and commands for it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, daemon, wait_for

DEVICES = "description: two GPUs, one at work\ngpus: {model: h100, count: 2}\n"
WORK = "processes: [{pid: 4242, gpus: [0], memory: 1GiB, load: 0.5}]\n"


@contextlib.contextmanager
def simulated(tmp_path: Path, *flags: str, more: str = "", work: str = WORK, ready: bool = True) -> Iterator[Daemon]:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(DEVICES + work + more)
    with daemon(tmp_path, f"--simulate={scenario}", "--web.enable-lifecycle", *flags, ready=ready) as running:
        yield running


def children(pid: int) -> list[int]:
    """Return the pids of all children of a process."""
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def workers(running: Daemon) -> list[int]:
    """Return the pids of the children of the daemon that could use the driver: all but the receiver, which loads none
    of its modules.
    """
    return [pid for pid in children(running.process.pid) if b"gpugauge.sessions.receiver" not in command_line(pid)]


def hangs(running: Daemon) -> bool:
    """Return whether a call of the simulated library hangs in the worker, which then blocks SIGTERM."""
    texts = [status.read_text() for pid in workers(running) for status in Path(f"/proc/{pid}/task").glob("*/status")]
    masks = [int(mask, 16) for text in texts for mask in re.findall(r"^SigBlk:\s+(\w+)", text, re.MULTILINE)]
    return any(mask >> signal.SIGTERM - 1 & 1 for mask in masks)


def goes_on(running: Daemon, seconds: float) -> None:
    """Wait for a snapshot that is this much newer than the present one."""
    name = "gpugauge_snapshot_timestamp_seconds"
    until = (value(running, name) or 0) + seconds
    wait_for(lambda: (value(running, name) or 0) >= until, 60, "the daemon goes on")


def command_line(pid: int) -> bytes:
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def device_files(pids: list[int]) -> list[str]:
    """Return the NVIDIA device files that the processes have open."""
    links = [str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
    return [link for link in links if link.startswith("/dev/nvidia")]


def command(running: Daemon, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [GPUGAUGE, *arguments, f"--url={running.url}"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def post(running: Daemon, path: str) -> tuple[int, str]:
    request = urllib.request.Request(running.url + path, data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def value(running: Daemon, name: str) -> float | None:
    return running.series(name).get(())


def counters(text: str) -> dict[tuple[str, str], float]:
    """Return the counters in a body, by name and labels, without the CPU time of the worker."""
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.type == "counter" or sample.name.endswith(("_count", "_sum"))
        if sample.labels.get("part") != "worker"
    }
