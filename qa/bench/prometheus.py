"""A Prometheus server for the benches, its queries and its own figures."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from qa.bench.measure import free_port

_START_SECONDS = 30.0


@dataclass
class Prometheus:
    """A running Prometheus."""

    process: subprocess.Popen[bytes]
    port: int
    evaluations: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # by group and time

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the answer of the HTTP API, or the text of another path. Raises OSError."""
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}{query}", timeout=120) as answer:
            body = answer.read()
        return json.loads(body)["data"] if path.startswith("/api") else body.decode()

    def value(self, expression: str, missing: float = 0.0) -> float:
        """Return the value of an expression with one series; `missing` if there is none."""
        result = self.ask("/api/v1/query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else missing

    def own(self) -> dict[str, float]:
        """Return Prometheus' own metrics, each summed over its labels."""
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? ([-+\d.e]+)$", self.ask("/metrics"), re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    @cached_property
    def groups(self) -> int:
        """The number of groups of rules, evaluated or not."""
        return len(self.ask("/api/v1/rules")["groups"])

    @cached_property
    def longest_interval(self) -> float:
        """The longest interval of a group of rules, in seconds."""
        return max(float(group["interval"]) for group in self.ask("/api/v1/rules")["groups"])

    def peak_gigabytes(self) -> float:
        """Return the peak of the resident memory so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024**2

    def scheduled(self) -> tuple[float, float]:
        """Return the seconds for which the threads ran, and for which they were ready and waited for a core."""
        ran, waited = 0.0, 0.0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                first, second, _ = (task / "schedstat").read_text().split()
                ran, waited = ran + int(first) / 1e9, waited + int(second) / 1e9
        return ran, waited

    def record_evaluations(self) -> None:
        """Record the last evaluation of each group of rules."""
        for group in self.ask("/api/v1/rules")["groups"]:
            if not group["lastEvaluation"].startswith("0001"):
                # The first answer counts: a later one may contain times of the next evaluation.
                self.evaluations.setdefault(group["name"], {}).setdefault(group["lastEvaluation"], group)

    def reset_evaluations(self) -> None:
        """Drop the evaluations so far, and the last of each group, which may have begun before."""
        self.record_evaluations()
        self._before = {name: set(seen) for name, seen in self.evaluations.items()}
        self.evaluations = {}

    def evaluated(self) -> dict[str, list[dict[str, Any]]]:
        """Return the evaluations by group since reset_evaluations()."""
        return {
            name: [group for at, group in seen.items() if at not in self._before.get(name, ())]
            for name, seen in self.evaluations.items()
        }


@contextlib.contextmanager
def prometheus(program: str, folder: Path, config: Mapping[str, Any], *flags: str) -> Iterator[Prometheus]:
    """Run Prometheus with its configuration, data and log in the folder."""
    port = free_port()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *flags]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    running = Prometheus(process, port)
    try:
        _wait_until_ready(running, log)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(running: Prometheus, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            running.ask("/-/ready")
            return
        if running.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"Prometheus does not start: {log.read_text()[-500:]}")
        time.sleep(0.1)
