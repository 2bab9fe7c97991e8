"""The systemd units in a booted machine, installed by the commands of docs/install-systemd.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT, blocks
from tests.e2e.programs import wait_for
from tests.needs import need

from qa.deploy.machine import Machine, boot

pytestmark = pytest.mark.deploy

DOCUMENT = "install-systemd.md"
UNITS = ROOT / "deploy" / "systemd"
SMALL = ROOT / "tests/e2e/workloads/small.py"
CONNECT = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('/run/gpugauge/hook.sock')"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a machine with the service installed and two users."""
    with boot(tmp_path_factory.mktemp("systemd")) as booted:
        # On some machines the interpreter with torch is below /root.
        booted.run("useradd -m anna; useradd -m ben; chmod 755 /root")
        for block in blocks(DOCUMENT, "Install"):
            booted.run(f"umask 077; cd /source\n{block}")
        yield booted


@pytest.fixture
def running(machine: Machine) -> Machine:
    """Return the machine with the service started."""
    machine.run("systemctl reset-failed; systemctl start gpugauge.socket gpugauge.service")
    return machine


def steps(machine: Machine) -> dict[str, float]:
    """Return the steps of each process."""
    text = machine.run("curl --silent --fail --retry 20 --retry-connrefused http://127.0.0.1:10478/metrics")
    found = re.findall(r'^torch_steps_total\{process="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {process: float(value) for process, value in found}


def train(machine: Machine, seconds: int) -> subprocess.Popen[str]:
    """Start a training as the user anna, who has no installation of gpugauge."""
    machine.run(f"install -m 644 /source/{SMALL.relative_to(ROOT)} /home/anna/train.py; rm -f /home/anna/out")
    command = f"gpugauge run --quiet -- {sys.executable} -W ignore train.py {seconds} out"
    return machine.popen(f"cd /home/anna; {command}", "anna")


def test_verify_is_silent(machine: Machine) -> None:
    assert machine.run("systemd-analyze verify gpugauge.service gpugauge.socket") == ""
    for drop_in in sorted(UNITS.glob("*.service.d/*.conf")):
        place = "/run/systemd/system/gpugauge.service.d"
        machine.run(f"mkdir -p {place}; cp /source/deploy/systemd/gpugauge.service.d/{drop_in.name} {place}/")
        assert machine.run("systemd-analyze verify gpugauge.service") == ""
        machine.run(f"rm -r {place}")


def exposure(machine: Machine) -> tuple[str, set[str]]:
    """Return the overall exposure and the names of the points with an exposure."""
    command = "systemd-analyze security --offline=true /etc/systemd/system/gpugauge.service"
    overall = re.findall(r"Overall exposure level for gpugauge.service: (\S+)", machine.run(command))[0]
    points = json.loads(machine.run(command + " --json=short"))
    return overall, {point["name"] for point in points if point["exposure"]}


def test_every_open_point_is_explained(machine: Machine) -> None:
    overall, points = exposure(machine)
    text = (ROOT / "docs" / DOCUMENT).read_text()
    # The names in the table: `AF_UNIX` for RestrictAddressFamilies=~AF_UNIX.
    names = {word for point in points for word in re.findall(r"CAP_\w+|\bAF_\w+(?=\)|$)|^\w+=", point)}
    names -= {"RestrictAddressFamilies=", "CapabilityBoundingSet="}

    assert [name for name in sorted(names) if f"`{name}" not in text] == []
    assert f"says {overall};" in text


@pytest.mark.parametrize(
    ("drop_ins", "words"),
    [("minimal", "then {}, or"), ("minimal scrapers", "or {} with `scrapers.conf`"), ("environ", "(exposure {})")],
)
def test_exposure_with_drop_ins(machine: Machine, drop_ins: str, words: str) -> None:
    place = "/run/systemd/system/gpugauge.service.d"
    for name in drop_ins.split():
        machine.run(f"mkdir -p {place}; cp /source/deploy/systemd/gpugauge.service.d/{name}.conf {place}")
    output = machine.run("systemctl daemon-reload; systemd-analyze security --no-pager gpugauge.service")
    machine.run(f"rm -r {place}; systemctl daemon-reload")
    (overall,) = re.findall(r"Overall exposure level for gpugauge.service: (\S+)", output)

    assert words.format(overall) in " ".join((ROOT / "docs" / DOCUMENT).read_text().split())
    assert drop_ins != "minimal scrapers" or float(overall) <= 1.5


def test_serves_as_its_own_user(running: Machine) -> None:
    for block in blocks(DOCUMENT, "Install")[1:]:
        running.run(block)
    pid = running.show("gpugauge", "MainPID")

    assert running.run(f"ps -o user= -p {pid}").strip() == "gpugauge"
    # CAP_SYS_PTRACE (19) and CAP_SYSLOG (34) only, also in the bounding set.
    for kind in ("CapEff", "CapBnd"):
        (mask,) = re.findall(rf"{kind}:\s+(\w+)", running.run(f"cat /proc/{pid}/status"))
        assert int(mask, 16) == 1 << 19 | 1 << 34


def test_metrics_are_well_formed(running: Machine) -> None:
    text = running.run("curl --silent --fail http://127.0.0.1:10478/metrics")
    check = subprocess.run([need("promtool"), "check", "metrics"], input=text, text=True, check=False)

    # 3: it parses, but promtool recommends other names.
    assert check.returncode in {0, 3}
    assert 'gpugauge_driver_up{reason="library_not_found"} 0' in text
    assert re.search(r"^gpugauge_build_info\{", text, re.MULTILINE)


def test_prometheus_scrapes_it_through_reload_restart_and_stop(running: Machine, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        'scrape_configs: [{job_name: gpugauge, static_configs: [{targets: ["127.0.0.1:10478"]}]}]\n'
    )
    files = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]

    def value(expression: str) -> float | None:
        ask = f"curl --silent --fail --data-urlencode 'query={expression}' http://127.0.0.1:9090/api/v1/query || true"
        result = json.loads(running.run(ask) or '{"data": {"result": []}}')["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    started, reloaded = (
        'gpugauge_start_timestamp_seconds{part="daemon"}',
        "gpugauge_config_last_reload_success_timestamp_seconds",
    )
    with running.program(need("prometheus"), *files, "--web.listen-address=127.0.0.1:9090", log=tmp_path / "log"):
        wait_for(lambda: value("up") == 1, 30, "Prometheus scrapes it")
        first, loaded = wait_for(lambda: value(started), 10, "its start is known"), value(reloaded)
        running.run("systemctl reload gpugauge.service")
        assert loaded is not None
        wait_for(lambda: (value(reloaded) or 0) > loaded, 20, "the settings were read again")
        assert value(started) == first
        running.run("systemctl restart gpugauge.service")
        wait_for(lambda: (value(started) or 0) > first, 20, "Prometheus scrapes the next daemon")
        running.run("systemctl stop gpugauge.service")
        wait_for(lambda: value("up") == 0, 20, "Prometheus sees that it has stopped")

    assert running.show("gpugauge", "Result") == "success"
    assert running.show("gpugauge", "ExecMainStatus") == "0"


def test_update(running: Machine) -> None:
    first = running.show("gpugauge", "MainPID")
    for block in [*blocks(DOCUMENT, "Change settings"), *blocks(DOCUMENT, "Upgrade")]:
        running.run(f"umask 077; cd /source\n{block}")

    assert running.show("gpugauge", "MainPID") != first
    assert running.show("gpugauge", "ActiveState") == "active"


@pytest.mark.parametrize("signal", ["KILL", "SEGV"])
def test_comes_back_when_killed(running: Machine, signal: str) -> None:
    before = int(running.show("gpugauge", "NRestarts"))
    running.run(f"systemctl kill --signal={signal} gpugauge.service")
    wait_for(lambda: int(running.show("gpugauge", "NRestarts")) > before, 20, "systemd starts it again")
    wait_for(lambda: running.show("gpugauge", "ActiveState") == "active", 20, "it is ready again")

    assert running.run("curl --silent http://127.0.0.1:10478/-/ready").strip() == "ready"


def test_watchdog_ends_a_frozen_daemon(running: Machine) -> None:
    place = "/run/systemd/system/gpugauge.service.d"
    running.run(f"mkdir -p {place}; printf '[Service]\nWatchdogSec=4\n' > {place}/short.conf")
    running.run("systemctl daemon-reload; systemctl restart gpugauge.service")
    before = int(running.show("gpugauge", "NRestarts"))
    running.run(f"kill -STOP {running.show('gpugauge', 'MainPID')}")
    wait_for(lambda: int(running.show("gpugauge", "NRestarts")) > before, 40, "the watchdog ends it")
    running.run(f"rm -r {place}; systemctl daemon-reload; systemctl restart gpugauge.service")

    assert "Watchdog timeout" in running.run("journalctl --unit=gpugauge --no-pager")


def test_training_runs_through_restarts(running: Machine) -> None:
    with train(running, 25) as training:
        (first,) = wait_for(lambda: steps(running), 20, "the training reports").items()
        running.run("systemctl restart gpugauge.service")
        (second,) = wait_for(lambda: steps(running), 20, "it reports to the next daemon").items()
        running.run("systemctl kill --signal=KILL gpugauge.service")
        (third,) = wait_for(lambda: steps(running), 20, "it reports to the one after").items()
        output, _ = training.communicate(timeout=60)
    counted = json.loads(running.run("cat /home/anna/out"))["steps"]
    (last,) = wait_for(
        lambda: [item for item in steps(running).items() if item[1] >= counted], 10, "the last step is reported"
    )

    assert (training.returncode, output) == (0, "")
    assert first[0] == second[0] == third[0] == last[0]
    assert first[1] < second[1] < third[1] < last[1] == counted


def test_training_starts_the_daemon(running: Machine) -> None:
    running.run("systemctl stop gpugauge.service")
    with train(running, 3) as training:
        wait_for(lambda: running.show("gpugauge", "ActiveState") == "active", 20, "the socket starts the service")
        assert wait_for(lambda: steps(running), 20, "the queued messages are read")
        training.communicate(timeout=60)

    assert training.returncode == 0


def test_training_without_service_and_socket(running: Machine) -> None:
    running.run("systemctl stop gpugauge.socket gpugauge.service")
    assert running.run("ls /run/gpugauge") == ""
    with train(running, 1) as training:
        output, _ = training.communicate(timeout=60)

    assert (training.returncode, output) == (0, "")


def test_hook_socket_for_all_users_or_for_one_group(running: Machine) -> None:
    connect = f'python3 -c "{CONNECT}"'
    running.run(connect, "anna")
    running.run(connect, "ben")
    running.fails("rm /run/gpugauge/hook.sock", "ben")
    for block in blocks(DOCUMENT, "The socket outlives the daemon"):
        running.run(f"cd /source\n{block}")
    running.run("usermod --append --groups ml anna")

    running.run(connect, "anna")
    assert "PermissionError" in running.fails(connect, "ben")
    running.run("rm -r /etc/systemd/system/gpugauge.socket.d; systemctl daemon-reload")
    running.run("systemctl stop gpugauge.service; systemctl restart gpugauge.socket gpugauge.service")


@pytest.mark.parametrize(("node", "reason"), [("c 195 255", "No such device"), ("c 10 229", "not permitted")])
def test_device_policy(machine: Machine, node: str, reason: str) -> None:
    """The unit's rules allow the GPUs, with or without a driver, and no other device, such as /dev/fuse."""
    unit = (UNITS / "gpugauge.service").read_text()
    rules = " ".join(f"-p '{line}'" for line in re.findall(r"^Device(?:Policy|Allow)=.*$", unit, re.MULTILINE))
    machine.run(f"rm -f /dev/probe; mknod -m 666 /dev/probe {node}")
    output = machine.fails(f"systemd-run --quiet --wait --pipe {rules} cat /dev/probe")

    assert reason in output


def test_real_library_loads_in_the_sandbox(running: Machine, tmp_path: Path) -> None:
    library = running.root / "usr" / "local" / "lib" / "nvidia"
    subprocess.run([Path(__file__).parent / "fetch-libnvidia-ml", library], check=True)
    running.run("echo /usr/local/lib/nvidia > /etc/ld.so.conf.d/nvidia.conf; ldconfig")
    running.run("systemctl restart gpugauge.service")

    text = running.run("curl --silent --fail http://127.0.0.1:10478/metrics")
    assert 'gpugauge_driver_up{reason="driver_not_loaded"} 0' in text


def test_remove_leaves_nothing(machine: Machine) -> None:
    for block in blocks(DOCUMENT, "Remove"):
        machine.run(block)

    assert (
        machine.run("ls /etc/systemd/system /opt /run /usr/lib/sysusers.d /etc/default | grep gpugauge || true") == ""
    )
    machine.fails("id gpugauge")
