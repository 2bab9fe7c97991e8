"""A real Prometheus for the played fleet, and what it tells of itself."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parent.parent / "deploy" / "prometheus" / "rules" / "gpugauge.yaml"
_UNITS = {"s": 1, "m": 60, "h": 3600}
_RANGE = re.compile(r"\b([a-z]\w+)(?:\{([^}]*)\})?\[(\d+)([smh])\]( offset (\d+)([smh]))?")
_CURRENT = 300.0  # how far back Prometheus looks for a value that stands without a range


def windows(names: set[str]) -> dict[str, float]:
    """Return by metric for how many seconds the rules look back, for those of the names that they read."""
    text = RULES.read_text()
    found = {name: _CURRENT for name in re.findall(r"\b[a-z]\w+", text) if name in names}
    for name, _, number, unit, _, offset, offset_unit in _RANGE.findall(text):
        if name in names:
            reach = int(number) * _UNITS[unit] + (int(offset) * _UNITS[offset_unit] if offset else 0)
            found[name] = max(found[name], float(min(reach, 3600)))
    return found


@dataclass
class Prometheus:
    """A running Prometheus."""

    process: subprocess.Popen[bytes]
    port: int
    evaluations: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # by group and time

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its interface; raises OSError for what it refuses."""
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}{query}", timeout=120) as answer:
            body = answer.read()
        return json.loads(body)["data"] if path.startswith("/api") else body.decode()

    def value(self, expression: str) -> float:
        """Return the one value of an expression, 0 if there is none."""
        result = self.ask("/api/v1/query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def own(self) -> dict[str, float]:
        """Return its metrics, each the sum over its labels."""
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? ([-+\d.e]+)$", self.ask("/metrics"), re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    @cached_property
    def groups(self) -> int:
        """How many groups of rules there are, evaluated or not."""
        return len(self.ask("/api/v1/rules")["groups"])

    @cached_property
    def slowest(self) -> float:
        """Seconds between two evaluations of the group that is evaluated least."""
        return max(float(group["interval"]) for group in self.ask("/api/v1/rules")["groups"])

    def peak_gigabytes(self) -> float:
        """Return the most memory that it held resident so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024**2

    def scheduled(self) -> tuple[float, float]:
        """Return for how long its threads ran, and for how long they were ready and other programs had the cores."""
        ran, waited = 0.0, 0.0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                first, second, _ = (task / "schedstat").read_text().split()
                ran, waited = ran + int(first) / 1e9, waited + int(second) / 1e9
        return ran, waited

    def look(self) -> None:
        """Remember the last evaluation of each group of rules."""
        for group in self.ask("/api/v1/rules")["groups"]:
            if not group["lastEvaluation"].startswith("0001"):
                # The first look: later the next evaluation may be under way, and the times of its rules mixed in.
                self.evaluations.setdefault(group["name"], {}).setdefault(group["lastEvaluation"], group)

    def forget(self) -> None:
        """Forget the evaluations so far, and the last of each, which may have begun before."""
        self.look()
        self._before = {name: set(seen) for name, seen in self.evaluations.items()}
        self.evaluations = {}

    def evaluated(self) -> dict[str, list[dict[str, Any]]]:
        """Return the evaluations since forget()."""
        return {
            name: [group for at, group in seen.items() if at not in self._before.get(name, ())]
            for name, seen in self.evaluations.items()
        }


@contextlib.contextmanager
def prometheus(program: str, targets: int, server: int, interval: float) -> Iterator[Prometheus]:
    """Run it on our rules and so many nodes behind one port, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, socket.socket() as s:
        folder = Path(name)
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        s.close()
        shutil.copy(RULES, folder / "rules.yaml")
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_settings(targets, server, interval)))
        command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        # The past that the nodes tell is older than half a block.
        command += ["--storage.tsdb.min-block-duration=4h", "--storage.tsdb.max-block-duration=4h"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        running = Prometheus(process, port)
        try:
            _ready(running, folder / "log")
            yield running
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(running: Prometheus, log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):
            running.ask("/-/ready")
            return
        if running.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"Prometheus does not start: {log.read_text()[-500:]}")
        time.sleep(0.1)


def _settings(targets: int, server: int, interval: float) -> Mapping[str, Any]:
    every = f"{interval:g}s"
    nodes = [
        {
            "targets": [f"127.0.0.1:{server}"],
            "labels": {"__metrics_path__": f"/node/{node}/metrics", "instance": f"node-{node:04d}"},
        }
        for node in range(targets)
    ]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "gpugauge", "static_configs": nodes}],
    }
