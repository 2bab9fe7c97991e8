"""The startup probe of the sidecar: it ends when the daemon is ready, and never fails before, however slow that is."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import yaml
from tests.e2e.manifests import FOLDER


@pytest.mark.parametrize("name", ["job", "pod"])
def test_it_waits_until_the_daemon_is_ready(name: str) -> None:
    made = yaml.safe_load((FOLDER / f"sidecar/component/{name}.yaml").read_text())
    spec = made["spec"]["template"]["spec"] if name == "job" else made["spec"]
    (daemon,) = [each for each in spec["initContainers"] if each["name"] == "gpugauge"]
    (port,) = [each["containerPort"] for each in daemon["ports"]]
    *options, text = daemon["startupProbe"]["exec"]["command"][1:]
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        changed = text.replace(f'("localhost", {port})', str(server.getsockname()))
        assert changed != text
        # Nothing listens at first.
        with subprocess.Popen([sys.executable, *options, changed], stderr=subprocess.PIPE) as probe:
            try:
                with pytest.raises(subprocess.TimeoutExpired):
                    probe.wait(0.6)
                server.listen()
                for answer in ("503 Service Unavailable", "200 OK"):
                    client, _ = server.accept()
                    with client:
                        assert client.recv(64) == b"GET /-/ready HTTP/1.0\r\n\r\n"
                        client.sendall(f"HTTP/1.0 {answer}\r\n\r\n".encode())
                assert (probe.wait(20), probe.communicate()[1]) == (0, b"")
            finally:
                probe.kill()
