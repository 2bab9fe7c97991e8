"""The image of the Dockerfile, really built and run by the commands of docs/install-container.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.containers import Podman, podman
from tests.e2e.documents import ROOT, blocks
from tests.e2e.programs import free_port, http, prometheus, wait_for
from tests.e2e.tools import tool

pytestmark = pytest.mark.deploy

DOCUMENT = "install-container.md"
OPTIONS = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
SMALL = Path(__file__).parent / "workloads" / "small.py"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Return podman with the image built."""
    with podman(tmp_path_factory.mktemp("podman")) as built:
        yield built


def shell(engine: Podman, command: str) -> str:
    """Run commands of the document as they stand."""
    done = subprocess.run(
        ["bash", "-ec", command], env=engine.environment, text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_document(engine: Podman) -> None:
    """Run the document from top to bottom; the build has another base and packages from a folder."""
    run, ask = blocks(DOCUMENT, "Run")
    (build,) = blocks(DOCUMENT, "Build")
    assert build == "podman build --format docker --tag gpugauge .\n"
    shell(engine, run)
    status = json.loads(engine.out("inspect", "gpugauge"))[0]
    answers = shell(engine, ask)
    processes = engine.out("exec", "gpugauge", "cat", "/proc/1/status")
    refused = engine("exec", "gpugauge", "touch", "/opt/x", check=False)
    (end,) = blocks(DOCUMENT, "Stop")
    start = time.monotonic()
    shell(engine, end)
    seconds = time.monotonic() - start

    assert status["HostConfig"]["ReadonlyRootfs"] is True
    assert answers.splitlines()[0] == "ready"
    assert re.search(r"^gpugauge, version|^gpugauge \d", answers, re.MULTILINE)
    assert re.findall(r"^(?:Uid|Gid):\s+(\d+)", processes, re.MULTILINE) == ["65532", "65532"]
    assert {int(mask, 16) for mask in re.findall(r"^Cap\w+:\s+(\w+)", processes, re.MULTILINE)} == {0}
    assert re.search(r"^NoNewPrivs:\s+1$", processes, re.MULTILINE)
    assert "Read-only file system" in refused.stdout
    assert seconds < 5  # podman's own second included; test_sigterm measures ours


def test_sigterm_ends_it_within_two_seconds(engine: Podman) -> None:
    port = free_port()
    engine("run", "--detach", "--name=stopped", *OPTIONS, f"--env=GPUGAUGE_WEB_LISTEN_ADDRESS=:{port}", "gpugauge")
    wait_for(lambda: http(f"http://127.0.0.1:{port}/-/ready")[0] == 200, 20, "the container is ready")
    start = time.monotonic()
    engine("kill", "--signal=TERM", "stopped")
    engine("wait", "stopped")
    seconds = time.monotonic() - start

    assert engine.out("inspect", "--format={{.State.ExitCode}}", "stopped") == "0"
    assert seconds < 2


def test_prometheus_scrapes_it(engine: Podman, tmp_path: Path) -> None:
    port = free_port()
    address = f"--env=GPUGAUGE_WEB_LISTEN_ADDRESS=:{port}"
    engine("run", "--detach", "--name=scraped", *OPTIONS, address, "gpugauge", "serve", "--simulate=node")
    with prometheus(tmp_path, f"127.0.0.1:{port}") as server:
        assert wait_for(lambda: server.value("count(gpu_up == 1)"), 30, "Prometheus has the cards") == 8


def test_training_beside_it_reports_through_a_folder(engine: Podman, tmp_path: Path) -> None:
    """As the document's table says: the folder belongs to the daemon's user; the training is root in its container."""
    port, sockets = free_port(), tmp_path / "sockets"
    sockets.mkdir()
    os.chown(sockets, 65532, 65532)
    tmp_path.chmod(0o755)
    share = f"--volume={sockets}:/run/gpugauge"
    address = f"--env=GPUGAUGE_WEB_LISTEN_ADDRESS=:{port}"
    engine("run", "--detach", "--name=daemon", *OPTIONS, share, address, "gpugauge")
    wait_for(lambda: http(f"http://127.0.0.1:{port}/-/ready")[0] == 200, 20, "the container is ready")
    hook = tmp_path / "hook"
    hook.mkdir()
    export = "from pathlib import Path; from gpugauge import launch; print(launch.export(Path('/hook')))"
    mount = f"--volume={hook}:/hook"
    bootstrap = engine.out("run", "--user=0", mount, "--entrypoint=/opt/gpugauge/bin/python3", "gpugauge", "-c", export)
    # The training's image is the base, without gpugauge; Python and torch are this machine's.
    mounts = [f"--volume={path}:{path}:ro" for path in {sys.base_prefix, sys.prefix} if path != "/usr"]
    mounts += [mount, f"--volume={SMALL.parent}:/workloads:ro", f"--env=PYTHONPATH={bootstrap}"]
    engine("run", share, *mounts, "localhost/base:1", sys.executable, "/workloads/small.py", "6", "/hook/out")
    counted = json.loads((hook / "out").read_text())["steps"]

    def steps() -> list[float]:
        text = http(f"http://127.0.0.1:{port}/metrics")[1].decode()
        return [float(value) for value in re.findall(r"^torch_steps_total\{.*\} (\S+)$", text, re.MULTILINE)]

    wait_for(lambda: steps() == [counted], 10, "the last step is reported")


def test_labels_environment_and_size(engine: Podman) -> None:
    image = json.loads(engine.out("image", "inspect", "gpugauge"))[0]
    base = json.loads(engine.out("image", "inspect", "localhost/base:1"))[0]
    (size,) = re.findall(r"adds (\d+) MB", (ROOT / "docs" / DOCUMENT).read_text())
    environment = dict(entry.split("=", 1) for entry in image["Config"]["Env"])

    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert abs((image["Size"] - base["Size"]) / 1e6 - int(size)) < 5


def test_no_build_tools(engine: Podman) -> None:
    look = "for tool in pip pip3 gcc make git; do command -v $tool; done; ls -d /source /root/.cache 2>/dev/null"
    pip = "python3 -m pip --version 2>&1 | grep -v 'No module named pip'"

    assert engine.out("run", "--rm", "--entrypoint=sh", "gpugauge", "-c", f"{look}; {pip}; true") == ""


def test_hadolint() -> None:
    done = subprocess.run([tool("hadolint"), ROOT / "Dockerfile"], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")
