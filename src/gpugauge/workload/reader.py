"""Facts about the workload of a process from the kernel, read once per process."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from gpugauge.base import privileges
from gpugauge.workload import cgroup, environ
from gpugauge.workload.command import command_name, is_helper, is_python
from gpugauge.workload.identity import Workload, clean
from gpugauge.workload.job import JobFacts
from gpugauge.workload.launch import Launch, is_display, launch_of
from gpugauge.workload.podinfo import compose_service
from gpugauge.workload.procfs import Procfs, Status
from gpugauge.workload.sources import Source
from gpugauge.workload.users import Users

log = logging.getLogger(__name__)

# Depth of multiprocessing helpers: the fork server starts others.
_MAX_HELPERS = 2


class KernelFacts(NamedTuple):
    """Facts about a process from the kernel. They include the id of the pod, but not its name."""

    workload: Workload
    container_pid: int | None
    job: JobFacts = JobFacts()
    user: int | None = None  # the uid whose name is not known yet
    parent: str = ""  # the `process` label of its parent, if that belongs to the same user


class Reader:
    """Reader of processes. A file that cannot be read affects only the labels that come from it."""

    def __init__(self, procfs: Procfs, users: Users, docker_containers: Path | None = None) -> None:
        self.sources = {name: Source(name, log) for name in ("cgroup", "environ")}
        self.labels_cleaned = 0
        self._procfs, self._users = procfs, users
        self._host, self._docker = procfs.host(), docker_containers
        self._may_read_others = False

    def read(self, pid: int, start: int) -> KernelFacts | None:
        """Return the facts about a process; None if it ended, or its pid belongs to another process now."""
        status = self._procfs.status(pid)
        if status is None:
            return None
        groups = self._cgroup(pid)
        read = self._environ(pid, status.uid)
        environment = read or {}
        command = self._command(pid, status)
        job = environ.slurm_job(environment, groups.slurm_job, in_pod=bool(groups.pod_uid))
        contained = bool(groups.pod_uid or groups.container_id or groups.system)
        owner = groups.owner if contained and groups.owner is not None else status.uid
        numbered = contained and groups.owner is None  # containers have their own users
        user = self._clean(self._users.number(owner) if numbered else self._users.name(owner))
        workload = Workload(
            kind=_kind(groups),
            container="" if groups.pod_uid else self._clean(groups.container_id[:12] or groups.system),
            job_id=self._clean(job or groups.pod_uid or ("" if contained else groups.unit)),
            user=user,
            command=self._clean(command),
            run_id=self._clean(environ.run_identity(environment)),
        )
        display = is_display(workload.command) and not is_python(self._procfs.argv(pid))
        launch = Launch() if job or groups.pod_uid or display else launch_of(self._procfs, pid, status.uid)
        parent = self._process(status.parent, status.uid)
        if self._procfs.start_time(pid) != start:
            return None
        return KernelFacts(
            workload,
            status.container_pid,
            JobFacts(
                environment,
                hidden=read is None,
                user=user,
                host=self._host,
                slurm_job=groups.slurm_job,
                pod_uid=groups.pod_uid,
                container_id=groups.container_id,
                rootless=contained and not numbered,
                compose=compose_service(self._docker, groups.container_id) if self._docker and numbered else "",
                host_network=not contained or self._procfs.uses_host_network(pid),
                unit=groups.unit,
                raylet=launch.raylet,
                launch=launch.name,
                display=display,
            ),
            user=None if numbered or self._users.is_known(owner) else owner,
            parent=parent,
        )

    def user_name(self, uid: int) -> str | None:
        """Return the name of a user, None if it is still not known."""
        name = self._users.name(uid)
        return self._clean(name) if self._users.is_known(uid) else None

    def _process(self, pid: int, uid: int) -> str:
        """Return the `process` label of a process of a user; empty if it has ended or belongs to another one."""
        status = self._procfs.status(pid) if pid > 1 else None
        return (self._procfs.process_id(pid) if status and status.uid == uid else None) or ""

    def _cgroup(self, pid: int) -> cgroup.Cgroup:
        try:
            text = self._procfs.read(pid, "cgroup").decode(errors="replace")
        except OSError as error:
            if self._procfs.start_time(pid) is not None:  # the process still exists
                sentence = "cgroups of processes cannot be read, pods, jobs and containers are missing"
                self.sources["cgroup"].set_down(sentence, error=error.strerror)
            return cgroup.Cgroup()
        self.sources["cgroup"].set_up()
        return cgroup.parse(text)

    def _environ(self, pid: int, uid: int) -> dict[str, str] | None:
        source = self.sources["environ"]
        try:
            content = self._procfs.read(pid, "environ")
        except PermissionError:
            # Single processes may be protected: the permission is missing if no other user's was readable.
            if not self._may_read_others:
                source.set_down(
                    "environments of other users' processes cannot be read, run ids and some jobs are missing: "
                    + privileges.reading_others()
                )
            return None
        except OSError:
            return None
        self._may_read_others |= uid != os.geteuid()
        if self._may_read_others or source.up is None:
            source.set_up()
        return environ.parse(content)

    def _command(self, pid: int, status: Status) -> bytes:
        """Return the name of the program; a helper of multiprocessing has the name of its Python program."""
        argv = self._procfs.argv(pid)
        name = command_name(argv) or self._procfs.comm(pid)
        for _ in range(_MAX_HELPERS):
            parent = self._procfs.status(status.parent) if is_helper(argv) else None
            argv = self._procfs.argv(status.parent) if parent else []
            if parent is None or not is_python(argv):
                break
            name, status = command_name(argv), parent
        return name

    def _clean(self, text: str | bytes) -> str:
        label = clean(text)
        if text not in {label, label.encode()}:
            self.labels_cleaned += 1
        return label


def _kind(groups: cgroup.Cgroup) -> str:
    """Return the manager of the process by the kernel's word; the inner one of two nested managers."""
    facts = {"slurm": groups.slurm_job, "pod": groups.pod_uid, "container": groups.container_id or groups.system}
    facts |= {"systemd": groups.unit, "user": "" if groups.owner is None else "owned"}
    return next((kind for kind, fact in facts.items() if fact), "")
