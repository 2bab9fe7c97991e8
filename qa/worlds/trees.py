"""Proc and cgroup file systems as plain folders, in the layout of each runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ID = "4f3c2b1a" * 8  # a container
OTHER_ID = "0d1e2f3a" * 8
UID = "3b6c1e52-9f0a-4d7e-8a51-0c2d4e6f8a10"  # a pod
UID_ = UID.replace("-", "_")
STATIC_UID = "9f86d081884c7d659a2feaa0c55ad015"


def v1(path: str, systemd: str | None = None) -> str:
    """Return the cgroup file of a process with the same path in all hierarchies."""
    names = ("cpuset", "cpu,cpuacct", "memory", "freezer")
    lines = [f"{i}:{name}:{path}" for i, name in enumerate(reversed(names), 2)]
    return "\n".join([*lines, f"1:name=systemd:{path if systemd is None else systemd}", ""])


def v2(path: str) -> str:
    return f"0::{path}\n"


@dataclass(frozen=True)
class Made:
    """Writer of a proc file system."""

    root: Path

    def process(
        self,
        pid: int,
        argv: Sequence[str | bytes] = ("/usr/bin/python3", "train.py"),
        *,
        cgroup: str = "0::/\n",
        environ: Mapping[str, str] | None = None,
        uid: int = 1000,
        parent: int = 1,
        start: int = 5000,
        comm: str = "python3",
        container_pid: int | None = None,
        session: int = 0,
        terminal: int = 0,
        group: int = 0,
        network: str = "",
    ) -> None:
        """Write or overwrite a process. `session` is the pid of its session's leader, `terminal` that of a terminal,
        `group` that of the leader of its process group, by default itself, and `network` a network namespace.
        """
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        words = [word.encode() if isinstance(word, str) else word for word in argv]
        (folder / "cmdline").write_bytes(b"".join(word + b"\0" for word in words))
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in (environ or {}).items()))
        if network:
            (folder / "ns").mkdir(exist_ok=True)
            (folder / "ns/net").unlink(missing_ok=True)
            (folder / "ns/net").symlink_to(f"net:[{network}]")
        fields = [
            "S",
            str(parent),
            str(group or pid),
            str(session),
            str(terminal),
            *["0"] * 14,
            str(start),
            *["0"] * 30,
        ]
        (folder / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
        pids = f"{pid}" if container_pid is None else f"{pid}\t{container_pid}"
        ids = "\t".join([str(uid)] * 4)
        (folder / "status").write_text(f"Name:\t{comm}\nPPid:\t{parent}\nUid:\t{ids}\nNSpid:\t{pids}\n")


def proc(root: Path) -> Made:
    random = root / "sys/kernel/random"
    random.mkdir(parents=True)
    (random / "boot_id").write_text("0f7bd1ae-3c4d-4b0e-9a50-000000000001\n")
    return Made(root)


def pod_logs(root: Path, namespace: str, pod: str, uid: str, containers: Mapping[str, str]) -> Path:
    """Write the entries of a pod in the log folders of the kubelet; containers are ids by name."""
    (root / "pods" / f"{namespace}_{pod}_{uid}").mkdir(parents=True)
    (root / "containers").mkdir(exist_ok=True)
    for name, identity in containers.items():
        (root / "containers" / f"{pod}_{namespace}_{name}-{identity}.log").symlink_to("/nowhere")
    return root
