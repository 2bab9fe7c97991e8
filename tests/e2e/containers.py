"""Real containers: images built from this machine's distribution, run by podman and runc in a storage of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.documents import ROOT
from tests.e2e.machine import need_root, rootfs, wheels
from tests.e2e.programs import need

# What is allowed where the tests run: no systemd, and limits that runc may set.
_CONF = """
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
"""
_ULIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")


@dataclass
class Podman:
    """podman and buildah with a storage below `folder`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman; what it printed on both outputs is in `stdout`."""
        return self._run([need("podman"), *arguments], check)

    def out(self, *arguments: str) -> str:
        """Run podman and return its standard output only."""
        command = [need("podman"), *arguments]
        done = subprocess.run(command, env=self.environment, text=True, stdout=subprocess.PIPE, check=True)
        return done.stdout.strip()

    def build(self, name: str, **arguments: str) -> None:
        """Build the repository's Dockerfile, with packages from a folder instead of an index."""
        pip = self.folder / "pip.conf"
        pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        options = ["--format=docker", "--isolation=oci", "--runtime=runc", "--network=host", "--pull-never", *_ULIMITS]
        options += [f"--volume={pip}:/etc/pip.conf:ro", f"--volume={wheels()}:/wheels:ro"]
        options += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        self._run([need("buildah"), "bud", *options, f"--tag={name}", str(ROOT)], check=True)

    def _run(self, command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=280,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}"
        return done


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[Podman]:
    """Yield podman with the image `gpugauge`, and end all its containers."""
    need_root()
    need("runc")
    runner = Podman(folder)
    (folder / "containers.conf").write_text(_CONF)
    storage = f'[storage]\ndriver = "overlay"\nrunroot = "{folder / "run"}"\ngraphroot = "{folder / "storage"}"\n'
    (folder / "storage.conf").write_text(storage)
    try:
        runner("import", str(rootfs("base", "python3", "ca-certificates")), "localhost/base:1")
        runner("import", str(rootfs("build", "python3-venv")), "localhost/build:1")
        runner.build("gpugauge", BASE_IMAGE="localhost/base:1", BUILD_IMAGE="localhost/build:1", VERSION="1.2.3")
        yield runner
    finally:
        runner("rm", "--all", "--force", check=False)
        runner("umount", "--all", "--force", check=False)
        shutil.rmtree(folder, ignore_errors=True)
