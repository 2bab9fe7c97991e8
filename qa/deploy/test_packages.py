"""The Debian package in a booted machine: installed, upgraded, removed. The RPM package has the same files."""

from __future__ import annotations

import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT
from tests.needs import need

from gpugauge import __version__
from qa.deploy.machine import Machine, boot

pytestmark = pytest.mark.deploy

SERVICE, SOCKET = "gpugauge.service", "gpugauge.socket"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the packages, and one with a higher version, as `make packages` writes them under a strict umask."""
    folder = tmp_path_factory.mktemp("packages")
    need("rpmbuild")
    out = subprocess.run(
        ["make", "--no-print-directory", "packages", f"DIST={folder}"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        umask=0o077,
    ).stdout
    found = {Path(line).suffix: Path(line) for line in out.splitlines() if line.endswith((".deb", ".rpm"))}
    tree = folder / "next"
    subprocess.run(["dpkg-deb", "--extract", str(found[".deb"]), str(tree)], check=True)
    found["next"] = runpy.run_path(str(ROOT / "deploy/package/build.py"))["deb"](tree, __version__, "2", folder)
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, packages: dict[str, Path]) -> Iterator[Machine]:
    """Return a machine that has the packages as files."""
    with boot(tmp_path_factory.mktemp("machine")) as booted:
        for name in (".deb", "next"):
            os.link(packages[name], booted.root / "srv" / f"{name.strip('.')}.pkg")
        yield booted


def install(machine: Machine, name: str) -> None:
    machine.run(f"DEBIAN_FRONTEND=noninteractive dpkg --install /srv/{name}.pkg </dev/null")


def states(machine: Machine) -> list[str]:
    return [machine.show(unit, "ActiveState") for unit in (SERVICE, SOCKET)]


def test_it_is_installed_upgraded_and_removed(machine: Machine) -> None:
    install(machine, "deb")
    assert states(machine) == ["active", "active"]
    assert machine.run(f"systemctl is-enabled {SERVICE} {SOCKET}").split() == ["enabled", "enabled"]
    assert "gpugauge_build_info{" in machine.run("curl --silent --fail http://127.0.0.1:10478/metrics")
    assert machine.run("gpugauge --version").startswith(f"gpugauge {__version__} ")
    assert machine.run("systemd-analyze verify gpugauge.service gpugauge.socket") == ""
    completed = "env COMP_WORDS='gpugauge stat' COMP_CWORD=1 _GPUGAUGE_COMPLETE=bash_complete gpugauge"
    assert machine.run(completed) == "plain,status\n"
    assert "no scontrol in" in machine.run("/usr/share/gpugauge/slurm/slurm-health-check.sh --dry-run")
    process, listening = machine.show(SERVICE, "MainPID"), machine.show(SOCKET, "ActiveEnterTimestampMonotonic")
    assert machine.run(f"ps -o user= -p {process}").strip() == "gpugauge"
    assert not (machine.root / "opt/gpugauge/bin/pip").exists()
    # A minimal machine has no procps.
    machine.run(f"rm /bin/kill; systemctl reload {SERVICE}")
    assert "capabilities" not in machine.run(f"journalctl --unit={SERVICE} --no-pager")

    machine.run("echo 'GPUGAUGE_LOG_LEVEL=debug' >> /etc/default/gpugauge")
    install(machine, "next")
    assert states(machine) == ["active", "active"]
    assert machine.show(SERVICE, "MainPID") != process
    assert machine.show(SOCKET, "ActiveEnterTimestampMonotonic") == listening
    assert "GPUGAUGE_LOG_LEVEL=debug\n" in (machine.root / "etc/default/gpugauge").read_text()

    machine.run(f"systemctl stop {SOCKET} {SERVICE}; systemctl disable --quiet {SOCKET} {SERVICE}")
    install(machine, "next")
    assert states(machine) == ["inactive", "inactive"]
    machine.run(f"systemctl start {SOCKET} {SERVICE}")

    machine.run("dpkg --remove gpugauge")
    assert [machine.show(unit, "LoadState") for unit in (SERVICE, SOCKET)] == ["not-found", "not-found"]
    assert "/opt/gpugauge/" not in machine.run("ps -eo args")
    left = [name for name in ("etc/default", "opt", "var/lib") if (machine.root / name / "gpugauge").exists()]
    assert left == ["etc/default", "var/lib"]
    assert list((machine.root / "opt").iterdir()) == []
    machine.run("dpkg --purge gpugauge")
    found = machine.run("find / -xdev -name '*gpugauge*'").splitlines()
    ours = ("/source/", "/wheels/", f"{sys.prefix}/", "/proc", "/sys", "/tmp")  # what boot() shows to the machine
    assert [path for path in found if not path.startswith(ours)] == []


def test_every_order_of_installations_and_removals(machine: Machine) -> None:
    """A new installation enables and starts the units. After that their state is the administrator's, also after the
    package was removed and installed again; only a purge forgets it.
    """
    draw = random.Random(random.randrange(1 << 30))
    orders = ("deb", "next", "remove", "purge", "stop", "disable", "enable")
    weights = (4, 4, 4, 2, 1, 1, 1)
    # The first ones were reported, the others are drawn.
    walk = ["deb", "remove", "deb", "next", "deb", "remove", "next", "disable", "remove", "deb", "purge", "deb"]
    walk += ["remove", "purge", "next", *draw.choices(orders, weights, k=20)]
    installed = configured = enabled = active = False
    for number, order in enumerate(walk):
        match order:
            case "deb" | "next":
                install(machine, order)
                enabled |= not configured
                active = active if installed else enabled
                installed = configured = True
            case "remove" | "purge":
                machine.run(f"dpkg --{order} gpugauge" if configured else "true")
                installed = active = False
                configured &= order == "remove"
                enabled &= order == "remove"
            case "stop" | "disable" | "enable" if installed:
                machine.run(f"systemctl {order} --quiet {SOCKET} {SERVICE}".replace("stop --quiet", "stop"))
                active &= order != "stop"
                enabled = enabled if order == "stop" else order == "enable"
        done = " ".join(walk[: number + 1])
        assert (machine.root / "opt").is_dir(), done
        assert (states(machine) == ["active", "active"]) is active, done
        if installed:
            shown = machine.run(f"systemctl is-enabled {SERVICE} {SOCKET} || true").split()
            assert shown == ["enabled" if enabled else "disabled"] * 2, done
    machine.run("dpkg --purge gpugauge || true")


def test_both_formats_have_the_same_files(packages: dict[str, Path]) -> None:
    def lines(*command: str) -> set[str]:
        return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())

    deb = {
        re.split(r" -> |\s\.", line, maxsplit=2)[1]
        for line in lines("dpkg-deb", "--contents", str(packages[".deb"]))
        if not line.startswith("d")
    }
    rpm = {
        line.split()[-1]
        for line in lines("rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", str(packages[".rpm"]))
        if not line.startswith("d")
    }
    assert deb == rpm
    assert len(deb) > 1000
    assert lines("rpm", "-qp", "--configfiles", str(packages[".rpm"])) == {"/etc/default/gpugauge"}
    # No path of the build is left in what the interpreter or the kernel reads.
    assert not any("/tmp/" in line for line in lines("dpkg-deb", "--info", str(packages[".deb"])))
