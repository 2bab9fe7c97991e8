"""A booted systemd in a container of systemd-nspawn, and the packages for it."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.documents import ROOT, fresh_checkout
from tests.e2e.programs import wait_for
from tests.needs import give_up, need

CACHE = ROOT / ".cache" / "e2e"
_SOURCES = ("sources.list.d/debian.sources", "sources.list.d/ubuntu.sources", "sources.list")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def need_root() -> None:
    """Without root, skip on a user's machine and fail in CI: namespaces and mounts need it."""
    if os.geteuid() != 0:
        give_up("needs root")


def rootfs(name: str, *packages: str) -> Path:
    """Return a tar file of this machine's distribution with these packages, cached below .cache/."""
    tar = CACHE / f"{name}.tar"
    if not tar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        sources = next(path for path in (Path("/etc/apt", name) for name in _SOURCES) if path.exists())
        suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
        part = tar.with_suffix(".part")
        command = [need("mmdebstrap"), "--variant=minbase", "--format=tar", f"--include={','.join(packages)}"]
        subprocess.run([*command, suite, str(part), str(sources)], check=True)
        part.rename(tar)
    return tar


def wheels() -> Path:
    """Return a folder with the packages of the lock files, those that build gpugauge included, for the distribution's
    Python.
    """
    folder, builder = CACHE / "wheels", CACHE / "builder"
    if not builder.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", str(builder)], check=True)
    folder.mkdir(exist_ok=True)
    download = [str(builder / "bin/pip"), "wheel", "--quiet", f"--find-links={folder}", f"--wheel-dir={folder}"]
    for lock in ("image", "build"):
        locked = ROOT / "deploy" / "requirements" / f"{lock}.txt"
        subprocess.run([*download, "--no-deps", "--require-hashes", f"--requirement={locked}"], check=True)
    return folder


@dataclass
class Machine:
    """A booted machine with a loopback network only."""

    root: Path
    init: int  # pid of its systemd in the namespace of the tests

    def popen(self, command: str, user: str = "root") -> subprocess.Popen[str]:
        """Start a shell command in the machine."""
        # PIP_: packages come from a folder in place of the index.
        variables = ("PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", "PIP_DISABLE_PIP_VERSION_CHECK=1")
        enter = ["nsenter", f"--target={self.init}", "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return subprocess.Popen(
            [*enter, "env", "-i", f"PATH={_PATH}", "LANG=C.UTF-8", *variables, *become, "bash", "-ec", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, user: str = "root") -> str:
        """Run a shell command in the machine, and return its output. Fails if the command fails."""
        with self.popen(command, user) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, f"{command}\n{output}"
        return output

    def fails(self, command: str, user: str = "root") -> str:
        """Run a shell command that must fail, and return its output."""
        with self.popen(command, user) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode != 0, f"{command}\n{output}"
        return output

    @contextlib.contextmanager
    def program(self, *command: str, log: Path) -> Iterator[None]:
        """Run a program of the host in the network namespace of the machine."""
        with log.open("wb") as out:
            process = subprocess.Popen(["nsenter", f"--target={self.init}", "-n", *command], stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run(f"systemctl show --property={name} --value {unit}").strip()


@contextlib.contextmanager
def boot(folder: Path) -> Iterator[Machine]:
    """Boot a machine with a copy of the checkout at /source, the wheels at /wheels, and this Python with its torch."""
    need_root()
    nspawn = need("systemd-nspawn")
    packages = ("systemd", "systemd-sysv", "dbus", "python3-venv", "curl", "procps")
    tar, root = rootfs("machine", *packages), folder / "machine"
    root.mkdir()
    subprocess.run(["tar", "-C", str(root), "-xf", str(tar), "--exclude=./dev/*"], check=True)
    source = fresh_checkout(folder)
    places = {
        str(source): "/source",
        str(wheels()): "/wheels",
        sys.base_prefix: sys.base_prefix,
        sys.prefix: sys.prefix,
    }
    binds = [f"--bind-ro={here}:{there}" for here, there in places.items() if not there.startswith("/usr")]
    flags = ["--register=no", "--keep-unit", "--console=pipe", f"--machine=gpugauge{os.getpid()}"]
    flags += ["--private-network", "--capability=CAP_SYSLOG"]
    with (folder / "boot.log").open("wb") as log:
        process = subprocess.Popen(
            [nspawn, f"--directory={root}", "--boot", *flags, *binds],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
    try:
        init = wait_for(lambda: _init_of(process.pid), 20, "the machine starts")
        machine = Machine(root, init)
        wait_for(lambda: _booted(machine), 60, "the machine is up")
        yield machine
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _init_of(nspawn: int) -> int | None:
    """Return the pid of the child that is systemd as pid 1 of a namespace."""
    for child in Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{child}/status").read_text()
            if status.startswith("Name:\tsystemd\n") and "\t1\n" in status[status.index("NSpid:") :]:
                return int(child)
    return None


def _booted(machine: Machine) -> bool:
    time.sleep(0.5)
    with machine.popen("systemctl is-system-running") as process:
        return process.communicate(timeout=30)[0].strip() in {"running", "degraded"}
