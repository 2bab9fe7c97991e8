"""The image of the Dockerfile, built and run by the commands of docs/install-container.md."""

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
from tests.e2e.documents import ROOT, blocks, fresh_checkout, shell
from tests.e2e.programs import free_port, http, prometheus, wait_for
from tests.needs import require

from gpugauge import __version__
from qa.deploy.containers import Podman, podman

pytestmark = pytest.mark.deploy

DOCUMENT = "install-container.md"
MAX_ADDED = 60  # MB; a build tool or a cache of packages would exceed it

OPTIONS = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
SMALL = ROOT / "tests/e2e/workloads/small.py"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Return podman with the image, built by the document's command in a fresh checkout; this machine's distribution
    replaces the document's base image.
    """
    (build,) = blocks(DOCUMENT, "Build")
    with podman(tmp_path_factory.mktemp("podman")) as runner:
        runner("tag", "localhost/build:1", "localhost/python:3.13-slim")
        shell(build, fresh_checkout(tmp_path_factory.mktemp("source")), runner.environment("build.conf"))
        yield runner


def head() -> str:
    return subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_document(engine: Podman) -> None:
    """Run all commands of the document."""
    run, ask = blocks(DOCUMENT, "Run")
    environment = engine.environment()
    shell(run, ROOT, environment)
    status = json.loads(engine.out("inspect", "gpugauge"))[0]
    answers = shell(ask, ROOT, environment)
    processes = engine.out("exec", "gpugauge", "cat", "/proc/1/status")
    refused = engine("exec", "gpugauge", "touch", "/opt/x", check=False)
    (end,) = blocks(DOCUMENT, "Stop")
    start = time.monotonic()
    shell(end, ROOT, environment)
    seconds = time.monotonic() - start

    assert status["HostConfig"]["ReadonlyRootfs"] is True
    assert answers.splitlines()[0] == "ready"
    assert re.search(rf"^gpugauge {__version__} \(revision {head()}; built 20\S+Z\)$", answers, re.MULTILINE)
    assert re.findall(r"^(?:Uid|Gid):\s+(\d+)", processes, re.MULTILINE) == ["65532", "65532"]
    assert {int(mask, 16) for mask in re.findall(r"^Cap\w+:\s+(\w+)", processes, re.MULTILINE)} == {0}
    assert re.search(r"^NoNewPrivs:\s+1$", processes, re.MULTILINE)
    assert "Read-only file system" in refused.stdout
    assert seconds < 5  # with the time of podman; test_sigterm measures the daemon's


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
        assert wait_for(lambda: server.value("count(gpu_up == 1)"), 30, "Prometheus has the GPUs") == 8


def test_training_beside_it_reports_through_a_folder(engine: Podman, tmp_path: Path) -> None:
    """As in the document's table: the folder belongs to the daemon's user; the training is root in its container."""
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
    export = "from pathlib import Path; from gpugauge.hook import launch; print(launch.export(Path('/hook')))"
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
    base = json.loads(engine.out("image", "inspect", "localhost/build:1"))[0]
    environment = dict(entry.split("=", 1) for entry in image["Config"]["Env"])

    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == __version__
    assert image["Config"]["Labels"]["org.opencontainers.image.revision"] == head()
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    added = (image["Size"] - base["Size"]) / 1e6
    print(f"gpugauge adds {added:.0f} MB to its base")
    assert 10 < added < MAX_ADDED


def test_no_build_tools(engine: Podman) -> None:
    search = "for tool in pip pip3 gcc make git; do command -v $tool; done; ls -d /source /root/.cache 2>/dev/null"
    pip = "python3 -m pip --version 2>&1 | grep -v 'No module named pip'"

    assert engine.out("run", "--rm", "--entrypoint=sh", "gpugauge", "-c", f"{search}; {pip}; true") == ""


@pytest.mark.parametrize(
    ("options", "read"),
    [
        (("--device=/dev/kmsg:/dev/kmsg:r", "--cap-add=SYSLOG"), True),  # as in the document's table
        (("--device=/dev/kmsg:/dev/kmsg:r",), False),
        (("--volume=/dev/kmsg:/dev/kmsg", "--cap-add=SYSLOG", "--user=0"), False),  # the device cgroup
    ],
)
def test_rights_for_the_kernel_log(engine: Podman, options: tuple[str, ...], read: bool) -> None:
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1"
    require(restricted, "every user may read the kernel log here (sysctl kernel.dmesg_restrict=1)")
    script = "import os; print(os.getuid(), len(os.read(os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK), 8192)))"
    command = ("--entrypoint=/opt/gpugauge/bin/python3", "gpugauge", "-c", script)
    done = engine("run", "--rm", *OPTIONS, *options, *command, check=False)

    assert (done.returncode == 0) is read
    assert ("65532" if read else "Operation not permitted: '/dev/kmsg'") in done.stdout
