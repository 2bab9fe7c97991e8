"""The parts of gpugauge that depend on the version of Python, without packages for tests: `python tests/smoke.py`.

It starts a daemon on a simulated node, reads what it serves in each format, and asks it by our own commands. It fails
with an exception.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

PORT = 10497
URL = f"http://127.0.0.1:{PORT}"
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
GPUGAUGE = [sys.executable, "-X", "dev", "-W", "error::SyntaxWarning", "-m", "gpugauge"]
COMMANDS = (["--version"], ["rules"], ["metrics"], ["status", "--url", URL], ["doctor", "--help"], ["scenarios"])
PROGRAM = (
    "import gpugauge.hook, sys; print(any(type(finder).__module__.startswith('gpugauge') for finder in sys.meta_path))"
)


def fetch(path: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(URL + path, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return bytes(reply.read())


def wait(daemon: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon is ready. Raises RuntimeError if it ends."""
    while daemon.poll() is None:
        with suppress(OSError):
            fetch("/-/ready")
            return
        time.sleep(0.1)
    raise RuntimeError(f"the daemon ended with {daemon.returncode}")


def main() -> None:
    print(sys.version)
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--web.listen-address=127.0.0.1:{PORT}", f"--hook.socket={Path(folder, 'hook.sock')}"]
        daemon = subprocess.Popen([*GPUGAUGE, "serve", "--simulate", "node", *flags], stderr=subprocess.DEVNULL)
        try:
            wait(daemon)
            assert b"gpu_up{" in fetch("/metrics", "text/plain")
            assert fetch("/metrics", "application/openmetrics-text; version=1.0.0").endswith(b"# EOF\n")
            assert b"gpu_up" in fetch("/metrics", PROTOBUF)
            assert len(json.loads(fetch("/api/v1/status"))["gpus"]) == 8
            assert b"<!doctype html>" in fetch("/").lower()
            for command in COMMANDS:
                result = subprocess.run([*GPUGAUGE, *command], capture_output=True, text=True, check=False)
                assert result.returncode in {0, 1, 3}, (command, result)  # 3: time is wasted, after a minute
                assert "Traceback" not in result.stderr, (command, result)
            hooked = [*GPUGAUGE, "run", sys.executable, "-c", PROGRAM]
            assert subprocess.run(hooked, capture_output=True, text=True, check=True).stdout == "True\n"
        finally:
            daemon.terminate()
        assert daemon.wait(20) == 0


if __name__ == "__main__":
    main()
