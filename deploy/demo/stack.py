"""The path of an alert on one machine, as processes: a SIMULATED exporter, Prometheus with the rules, Alertmanager with
the example configuration of deploy/prometheus, and a receiver that prints the notifications. Needs no root, keeps its
data in a temporary folder, and ends all processes on Ctrl-C: `make demo-stack`, docs/demo.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "prometheus"
# The possible names of each program, by its Debian package.
PROGRAMS = {"prometheus": ("prometheus",), "prometheus-alertmanager": ("prometheus-alertmanager", "alertmanager")}
# Seconds for which the verdict on a new training is `unknown`; they must not count in the shortened average.
SETTLING_SECONDS = 20
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PLACEHOLDER = "http://alerts.example"


class StackError(Exception):
    """The chain cannot run; the message gives the reason and the remedy."""


def say(*lines: str) -> None:
    """Write lines to standard output and flush, so that they are not buffered in a pipe."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def find_programs() -> dict[str, str]:
    """Return the path of each program by Debian package. Raises StackError with the names of all missing packages."""
    found = {package: next(filter(None, map(shutil.which, names)), None) for package, names in PROGRAMS.items()}
    missing = [package for package, path in found.items() if path is None]
    if missing:
        raise StackError(
            f"not installed: {', '.join(missing)}; on Debian or Ubuntu: apt-get install {' '.join(missing)}"
        )
    return {package: path for package, path in found.items() if path}


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def rules(patience: int) -> list[str]:
    """Return the flags of `gpugauge rules` for `patience` in seconds; the others are derived as in the defaults."""
    seconds_by_flag = {
        "patience": patience,
        "min-job-age": patience + SETTLING_SECONDS,
        "settle": max(1, patience // 4),
        "idle-patience": 2 * patience,
        "stall-patience": patience,
        "release-patience": 2 * patience,
        "keep-firing": patience,
        "scrape-interval": 1,
        "evaluation-interval": 1,
    }
    return [f"--{name}={seconds}s" for name, seconds in seconds_by_flag.items()]


def alertmanager_config(webhook: str, patience: int) -> str:
    """Return the example with its receivers at `webhook`/NAME and with waits that match the rules."""
    tree = yaml.safe_load((EXAMPLES / "alertmanager.yaml").read_text().replace(_PLACEHOLDER, webhook))
    tree["route"] |= {"group_wait": f"{max(1, patience // 30)}s", "group_interval": f"{max(1, patience // 3)}s"}
    return yaml.safe_dump(tree, sort_keys=False)


def prometheus_config(rule_file: Path, exporter: int, alertmanager: int) -> str:
    """Return the example with our rules, one target, our Alertmanager, and a scrape every second."""
    tree = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    tree["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    tree["rule_files"] = [str(rule_file)]
    tree["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
    tree["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{exporter}"]}]
    return yaml.safe_dump(tree, sort_keys=False)


@dataclass
class Stack:
    """Processes that run together: if one ends, all are ended."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], ready: str) -> None:
        """Start a program in a session of its own, so that Ctrl-C does not reach it directly, and wait until `ready`
        returns 200. Raises StackError after 60 s.
        """
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while not _answers(ready):
            self.check()
            if time.monotonic() > deadline:
                raise StackError(f"{name} is not ready after 60 s; the end of its log:\n{self._log_tail(name)}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise StackError if a program has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                code, tail = process.returncode, self._log_tail(name)
                raise StackError(f"{name} ended with {code}; the end of its log:\n{tail}")

    def stop(self) -> None:
        """End all processes, the last started first."""
        for process in reversed(self.running.values()):
            process.terminate()
        for process in reversed(self.running.values()):
            _end(process)

    def _log_tail(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:])


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback
    try:
        with opener.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


class _Receiver(BaseHTTPRequestHandler):
    """Prints each notification: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config."""

    def do_POST(self) -> None:
        notification = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in notification["alerts"]:
            say(*_lines(notification["receiver"], alert))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests; do_POST prints their content."""


def _lines(receiver: str, alert: dict[str, Any]) -> list[str]:
    labels, annotations = alert["labels"], alert["annotations"]
    texts = [annotations[name] for name in ("summary", "description", "runbook_url") if name in annotations]
    head = f"{time.strftime('%H:%M:%S')}  {alert['status'].upper()} to {receiver}, {labels['severity']}:"
    rest = "  ".join(f"{key}={value}" for key, value in labels.items() if key not in {"alertname", "severity"})
    return ["", f"{head} {labels['alertname']}", *(f"  {x}" for x in (rest, *texts))]


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """Run the receiver on a free port; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def start(stack: Stack, scenario: str, patience: int, webhook: str) -> dict[str, str]:
    """Start the three programs; return the URL of each."""
    programs, gpugauge = find_programs(), str(Path(sys.executable).with_name("gpugauge"))
    folder, (exporter, alertmanager, prometheus) = stack.folder, (free_port() for _ in range(3))
    made = subprocess.run([gpugauge, "rules", *rules(patience)], check=False, capture_output=True)
    if made.returncode:
        raise StackError(made.stderr.decode().strip())
    (folder / "rules.yaml").write_bytes(made.stdout)
    (folder / "alertmanager.yaml").write_text(alertmanager_config(webhook, patience))
    (folder / "prometheus.yaml").write_text(prometheus_config(folder / "rules.yaml", exporter, alertmanager))
    commands = {
        "gpugauge": (exporter, [gpugauge, "serve", f"--simulate={scenario}", f"--hook.socket={folder / 'hook.sock'}"]),
        "Alertmanager": (
            alertmanager,
            [
                programs["prometheus-alertmanager"],
                f"--config.file={folder / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager'}",
                "--cluster.listen-address=",  # no cluster, so no port for peers
            ],
        ),
        "Prometheus": (
            prometheus,
            [
                programs["prometheus"],
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
            ],
        ),
    }
    for name, (port, command) in commands.items():
        address = f"127.0.0.1:{port}"
        stack.start(name, [*command, f"--web.listen-address={address}"], f"http://{address}/-/ready")
    return {name: f"http://127.0.0.1:{port}" for name, (port, _) in commands.items()}


def run(scenario: str, patience: int, webhook: str | None) -> None:
    """Run until interrupted. Raises StackError."""
    with contextlib.ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="gpugauge-demo-")))
        stack = Stack(folder)
        exits.callback(stack.stop)
        for number in INTERRUPTS:  # a second signal must not interrupt the clean-up
            exits.callback(signal.signal, number, signal.SIG_IGN)
        urls = start(stack, scenario, patience, webhook or exits.enter_context(receiver()))
        say(
            "SIMULATED: no figure and no alert below is of a real GPU.",
            *(f"  {name:<14} {url}" for name, url in urls.items()),
            f"  data and logs  {folder}, removed at the end",
            f"Judged by the mean of {patience} s instead of 15 min; the first alert comes after some "
            f"{patience + SETTLING_SECONDS + patience // 4 + 5} s. Ctrl-C ends everything.",
        )
        while True:
            stack.check()
            time.sleep(0.5)


def main() -> int:
    """Return the exit code; an interrupt is the normal end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="twins", help="a name from `gpugauge scenarios`, or a file [twins]")
    parser.add_argument("--patience", type=int, default=30, help="seconds over which load and causes are averaged [30]")
    parser.add_argument("--webhook", help="send notifications to URL/RECEIVER instead of printing them")
    options = parser.parse_args()
    if options.patience < 10:
        parser.error(f"--patience {options.patience}: a verdict needs at least 10 s")
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    try:
        run(options.scenario, options.patience, options.webhook)
    except StackError as error:
        say(f"demo-stack: {error}")
        return 1
    except KeyboardInterrupt:
        say("", "ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
