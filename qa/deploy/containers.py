"""Containers of this machine's distribution, built and run by podman and runc in a storage of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.documents import ROOT
from tests.needs import need

from qa.deploy.machine import need_root, rootfs, wheels

# For machines without systemd, and with limits that runc may set.
_CONF = """
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
"""


@dataclass
class Podman:
    """podman with a storage below `folder`."""

    folder: Path

    def environment(self, conf: str = "containers.conf") -> dict[str, str]:
        """Return the environment for podman; with "build.conf", pip takes wheels from a folder."""
        places = {"CONTAINERS_CONF": conf, "CONTAINERS_STORAGE_CONF": "storage.conf"}
        # "oci" needs no systemd.
        return {
            **os.environ,
            **{name: str(self.folder / file) for name, file in places.items()},
            "BUILDAH_ISOLATION": "oci",
        }

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman; `stdout` of the result has both outputs."""
        return self._run([need("podman"), *arguments], check)

    def out(self, *arguments: str) -> str:
        """Run podman and return its standard output only."""
        command = [need("podman"), *arguments]
        done = subprocess.run(command, env=self.environment(), text=True, stdout=subprocess.PIPE, check=True)
        return done.stdout.strip()

    def build(self, name: str, **arguments: str) -> None:
        """Build the repository's Dockerfile, with packages from a folder instead of an index."""
        options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        self._run(
            [need("podman"), "build", "--format=docker", *options, f"--tag={name}", str(ROOT)], True, "build.conf"
        )

    def _run(self, command: list[str], check: bool, conf: str = "containers.conf") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            env=self.environment(conf),
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
    """Yield podman with two images, `base` with python3, `build` with venv as well; end its containers afterwards."""
    need_root()
    need("runc")
    need("buildah")
    runner = Podman(folder)
    pip = folder / "pip.conf"
    pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    (folder / "containers.conf").write_text(_CONF)
    (folder / "build.conf").write_text(_CONF + f'volumes = ["{pip}:/etc/pip.conf:ro", "{wheels()}:/wheels:ro"]\n')
    storage = f'[storage]\ndriver = "overlay"\nrunroot = "{folder / "run"}"\ngraphroot = "{folder / "storage"}"\n'
    (folder / "storage.conf").write_text(storage)
    try:
        runner("import", str(rootfs("base", "python3", "ca-certificates")), "localhost/base:1")
        runner("import", str(rootfs("build", "python3-venv")), "localhost/build:1")
        yield runner
    finally:
        runner("rm", "--all", "--force", check=False)
        runner("umount", "--all", "--force", check=False)
        # podman mounts the folder of its layers on itself, and sometimes leaves the mount, which blocks its removal.
        for place in mounts(folder):
            subprocess.run(["umount", place], check=False)
        shutil.rmtree(folder, ignore_errors=True)
        assert not mounts(folder)


def mounts(folder: Path) -> list[str]:
    """Return the mount points below `folder`, the innermost first."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [place for place in reversed(places) if place.startswith(f"{folder}/")]
