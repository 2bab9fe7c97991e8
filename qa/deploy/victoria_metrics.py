"""A real VictoriaMetrics with a past, over which its vmalert evaluates the rules."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.e2e.backfill import Sample, levels
from tests.e2e.programs import free_port, http, victoria, wait_for

from qa.bench.alerts.replay import dump


@contextlib.contextmanager
def database(folder: Path, samples: Iterable[Sample] = (), *more: str) -> Iterator[str]:
    """Run VictoriaMetrics with these samples in the folder, and yield its URL; `more` are flags."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = [
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'data'}",
        "-search.latencyOffset=0s",
        *more,
    ]
    log = folder / "victoria.log"
    with log.open("wb") as out:
        process = subprocess.Popen([victoria("victoria-metrics"), *flags], stdout=out, stderr=out)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return http(f"{url}/health")[0] == 200

    try:
        wait_for(ready, 30, "VictoriaMetrics is ready")
        text = "".join(f"{name} {value!r} {1000 * second}\n" for name, value, second in samples)
        _post(f"{url}/api/v1/import/prometheus", text.encode())
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _post(url: str, body: bytes = b"") -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=60):
        pass


def replay(url: str, folder: Path, groups: Mapping[str, Any], begin: int, end: int) -> None:
    """Let vmalert write what the rules record, and their alerts, between two times.

    A replay takes one rule after the other over the whole time, so those that read recorded series come later.
    """
    _post(f"{url}/internal/force_flush")
    for number, rules in enumerate(levels(groups)):
        file = folder / f"level{number}.yaml"
        file.write_text(dump({"groups": [{"name": "replayed", "interval": "1m", "rules": rules}]}))
        times = [f"-replay.time{name}={_time(at)}" for name, at in (("From", begin), ("To", end))]
        pace = ["-replay.disableProgressBar", "-replay.rulesDelay=0s", "-httpListenAddr=127.0.0.1:0"]
        command = [victoria("vmalert"), f"-rule={file}", f"-datasource.url={url}", f"-remoteWrite.url={url}"]
        done = subprocess.run([*command, *times, *pace], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        _post(f"{url}/internal/force_flush")


def _time(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
