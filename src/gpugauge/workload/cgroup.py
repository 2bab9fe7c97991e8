"""Pod, container, Slurm job and systemd unit of a process, from /proc/PID/cgroup, which the process cannot change."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Pod: `/kubepods/burstable/pod<uid>`, `/kubepods.slice/kubepods-burstable-pod<uid with _>.slice`; a hash if static.
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=[/:]|$)")
# Container: `/<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`, `crio-<id>.scope`, `libpod-<id>.scope`, and
# `….slice:cri-containerd:<id>` if containerd and the kubelet use different cgroup drivers.
# Podman's pods have an id, too: `/libpod_parent/<id>/libpod-<id>`.
_CONTAINER = re.compile(r"(?<!/libpod_parent)[/:-]([0-9a-f]{64})(?:\.scope)?(?=/|$)")
# Slurm job: `/system.slice/[<node>_]slurmstepd.scope/job_<id>` with v2, `/slurm[_<node>]/uid_<uid>/job_<id>` with v1.
# Slurm 26.05 names it by its SLUID, `…/slurmstepd.scope/s5K1KKYAYG5D00`, unless CgroupJobIdPaths=yes.
_SLURM = re.compile(
    r"/(?:(?:[^/]+_)?slurmstepd\.scope|slurm[^/]*/uid_\d+)/(?:job_([0-9]{1,20})|(s[0-9A-Z]{13}))(?=/|$)"
)
_SLURM_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")  # of the jobs of all users
# The system in a container of LXC (LXD, Incus, Proxmox) or systemd-nspawn has users and services of its own.
_SYSTEM = re.compile(
    r"^(?:/lxc\.payload\.|/lxc/|/machine\.slice/(?:systemd-nspawn@|machine-)(?=[^/]+/payload(?:/|$)))([^/]+?)(?:\.service|\.scope)?(?=/|$)"
)
_OWNER = re.compile(r"^/user\.slice/user-([0-9]{1,10})\.slice(?=/|$)")
# Paths outside of this process's cgroup namespace, see cgroup_namespaces(7).
_OUTSIDE = re.compile(r"^(?:/\.\.)+(?=/)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


class Cgroup(NamedTuple):
    """Facts in the cgroup paths of a process; unknown ones are empty or None."""

    pod_uid: str = ""
    container_id: str = ""  # 64 hex digits
    slurm_job: str = ""  # its number, or its SLUID
    unit: str = ""  # systemd unit, except those of containers, sessions and desktop programs
    owner: int | None = None  # uid of the user whose slice it is in
    system: str = ""  # name of the container with a system of its own


def parse(text: str) -> Cgroup:
    """Parse the content of /proc/PID/cgroup, v1, v2 or both; of several lines with the same fact the first counts."""
    read = [_parse_path(path) for path in dict.fromkeys(path for _, path in _lines(text))]
    system = next((r for r in read if r.system), None)
    if system:
        return system
    placed = next((r for r in read if r.pod_uid), None) or next((r for r in read if r.container_id), Cgroup())
    return Cgroup(
        pod_uid=placed.pod_uid,
        container_id=placed.container_id,
        slurm_job=next((r.slurm_job for r in read if r.slurm_job), ""),
        unit=next((r.unit for r in read if r.unit), ""),
        owner=next((r.owner for r in read if r.owner is not None), None),
    )


def directory(text: str, root: Path, controller: str) -> Path | None:
    """Return the folder of a process's cgroup for a controller, mounted at `root`; None if it is out of sight."""
    candidates = []
    for controllers, path in _lines(text):
        if path.startswith("/.."):
            continue
        if controller in controllers.split(","):
            # Mounted under the joined name, `cpu,cpuacct`, or linked under the single name.
            candidates += [root / controllers / path[1:], root / controller / path[1:]]
        elif not controllers:
            candidates += [root / "unified" / path[1:], root / path[1:]]
    return next((folder for folder in candidates if os.path.isdir(folder)), None)  # noqa: PTH112 - raises no error


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield controllers (empty for v2) and path of each line `hierarchy:controllers:path`, see cgroups(7)."""
    for line in text.split("\n"):  # the kernel escapes no other separator of lines, and users may choose names with one
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            yield controllers, path


def _parse_path(path: str) -> Cgroup:
    path = _OUTSIDE.sub("", path)
    system = _SYSTEM.match(path)
    if system:  # its root chooses the names below
        return Cgroup(system=system[1])
    owner = _OWNER.match(path)
    # Below a user's slice the user chooses the names, so that they do not prove a pod or a job.
    pod = None if owner else _POD.search(path)
    job = None if owner else _SLURM.search(path)
    container = _CONTAINER.search(path, pod.end() if pod else 0)
    return Cgroup(
        pod_uid=pod[1].replace("_", "-") if pod else "",
        container_id=container[1] if container else "",
        slurm_job=job[1] or job[2] if job else "",
        unit="" if container or job else _unit(path, bool(owner)),
        owner=int(owner[1]) if owner else None,
    )


def _unit(path: str, in_user_slice: bool) -> str:
    units = [u for u in _UNIT.findall(path) if u != "init.scope" and not _SLURM_SCOPE.fullmatch(u)]
    if in_user_slice:
        # user@1000.service is the user's manager. Scopes are sessions, terminals and desktop programs. Desktops start
        # programs as services, too: `app-<launcher>-<id>@<random>.service`, and terminals over D-Bus.
        units = [u for u in units if u.endswith(".service") and not u.startswith(("user@", "app-", "dbus-"))]
        units = [u for u in units if not u.endswith("-terminal-server.service")]
    return units[-1] if units else ""
