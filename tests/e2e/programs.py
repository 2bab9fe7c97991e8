"""The real programs of the end-to-end tests: the daemon and Prometheus, each in a context."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.drawn import OF_TESTS
from tests.needs import give_up, need

# Seconds until something does not happen: on a busy machine all takes longer, and no test holds it to times.
PATIENCE = 120.0
GPUGAUGE = str(Path(sys.executable).parent / "gpugauge")
Series = dict[tuple[str, ...], float]


def prometheus3(program: str) -> str:
    """Return the path of a program of the current Prometheus; skips or fails as need() does."""
    return _fetched("prometheus3", "promtool", "prometheus", "promtool", "prometheus-alertmanager") + program


def victoria(program: str) -> str:
    """Return the path of a program of the current VictoriaMetrics; skips or fails as need() does."""
    return _fetched("victoria", "vmalert", "victoria-metrics") + program


def _fetched(name: str, program: str, *packages: str) -> str:
    """Return the folder of the programs of Debian's newest packages, which are fetched once."""
    folder = Path(__file__).parents[2] / ".cache" / name
    fetch = [str(Path(__file__).with_name("fetch-debian")), str(folder), f"usr/bin/{program}", "sid", *packages]
    with contextlib.ExitStack() as stack:
        folder.parent.mkdir(exist_ok=True)
        lock = stack.enter_context(folder.with_suffix(".lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # of parallel tests, one fetches
        fetched = subprocess.run(fetch, check=False, capture_output=True, text=True)
    if fetched.returncode:
        give_up(f"{packages[0]} cannot be fetched: {fetched.stderr.strip()}")
    return f"{folder}/usr/bin/"


def new_pid_namespace() -> tuple[str, ...]:
    """Return the prefix of a command that runs it as pid 1; in a user namespace where that is allowed, else as root."""
    command = (need("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child")
    by_user = (command[0], "--user", "--map-root-user", *command[1:])
    allowed = subprocess.run([*by_user, "true"], check=False, capture_output=True).returncode == 0
    return by_user if allowed else command


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def wait_for(condition: Callable[[], Any], seconds: float, message: str) -> Any:
    """Poll until `condition` returns something true, and return it. Fails after `seconds`, and not before PATIENCE."""
    began = time.monotonic()
    while True:
        result = condition()
        if result:
            return result
        passed = time.monotonic() - began
        if passed > max(seconds, PATIENCE):
            raise AssertionError(f"not within {max(seconds, PATIENCE):g} s: {message}")
        time.sleep(min(0.5, 0.05 + passed / 20))  # to ask costs the machine more than to wait


def http(url: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError as error:
        return 0, repr(error).encode()


@dataclass
class Daemon:
    """A running `gpugauge serve`."""

    process: subprocess.Popen[bytes]
    url: str
    socket: Path
    log: Path

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log.read_text()}")
        return http(self.url + "/-/ready")[0] == 200

    def metrics(self) -> str:
        status, body = http(self.url + "/metrics")
        assert status == 200, (status, body[:500], self.process.poll(), self.log.read_text())
        return body.decode()

    def series(self, name: str, *labels: str) -> Series:
        """Return the values of one metric by the named labels."""
        lines = (line for line in self.metrics().splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for family in text_string_to_metric_families("\n".join(lines))
            for sample in family.samples
        }

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send the signal; return the exit code and the seconds until the end."""
        start = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(PATIENCE), time.monotonic() - start


@contextlib.contextmanager
def daemon(
    folder: Path,
    *flags: str,
    environment: dict[str, str] | None = None,
    ready: bool = True,
    prefix: tuple[str, ...] = (),
) -> Iterator[Daemon]:
    """Serve on a free port with a hook socket below `folder`."""
    port = free_port()
    path = folder / "hook" / "hook.sock"
    log = folder / "daemon.log"
    command = [*prefix, GPUGAUGE, "serve", f"--web.listen-address=127.0.0.1:{port}", f"--hook.socket={path}", *flags]
    # A killed daemon leaves its files in TMPDIR; pytest removes the folder.
    inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    variables = {**inherited, "TMPDIR": str(folder), **(environment or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out, stdout=out, env=variables)
    running = Daemon(process, f"http://127.0.0.1:{port}", path, log)
    try:
        if ready:
            wait_for(running.ready, 20, "the daemon is ready")
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


@dataclass
class Prometheus:
    """A running Prometheus server."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        status, body = http(f"{self.url}/api/v1/query?{query}")
        answer = json.loads(body)
        assert status == 200, answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        result = self.query(expression)
        return float(result[0]["value"][1]) if result else None


@contextlib.contextmanager
def prometheus(
    folder: Path,
    *targets: str,
    interval: str = "1s",
    scrape: str = "",
    rules: Path | None = None,
    program: str | None = None,
    options: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """Run Prometheus on the targets (host:port); `scrape` has further keys of the job, such as `scheme: https, `."""
    config = folder / "prometheus.yml"
    listed = ", ".join(f'"{target}"' for target in targets)
    config.write_text(
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}\n"
        f"scrape_configs: [{{job_name: gpugauge, {scrape}static_configs: [{{targets: [{listed}]}}]}}]\n"
        + (f"rule_files: [{rules}]\n" if rules else "")
    )
    command = [program or need("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += options
    with listening(folder / "prometheus.log", *command) as url:
        yield Prometheus(url)


@contextlib.contextmanager
def listening(log: Path, *command: str) -> Iterator[str]:
    """Run Prometheus or Alertmanager on a free port; yield its URL when it is ready."""
    port = free_port()
    with log.open("wb") as out:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=out, stdout=out)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return http(f"http://127.0.0.1:{port}/-/ready")[0] == 200

    try:
        wait_for(ready, 30, f"{command[0]} is ready")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
