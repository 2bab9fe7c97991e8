"""The repair of a GPU in commands that work as printed on the machine of a daemon: drain, stop what reads it, reset."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from gpugauge.settings.kinds import DEFAULT_PORT
from gpugauge.settings.model import Settings
from gpugauge.workload.users import shares_host_users

User: TypeAlias = "tuple[str, int | None]"  # the kind of a program's workload, and its pid if a command can end it
_MANAGED = {"pod", "slurm"}
_MAX_PIDS = 8  # in an advice
_EVERY_ADDRESS = {"", "0.0.0.0", "::", "localhost"}  # noqa: S104  (compared, not bound)
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_UNIT = re.compile(r"/([\w@.:-]+)\.service$", re.MULTILINE)
_CGROUP = Path("/proc/self/cgroup")
_FROM_STOP = re.compile(r"\{stop\}.*")
# After this step the node takes jobs again; of several, the last one where the others have not helped.
_REPAIRED = re.compile(r"\{start\}|systemctl reboot(?:, which[^;]*)?")


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a daemon, without facts about it a service of systemd. `url` is empty for the default address, and
    `managers` are the kinds of workloads on the node that a manager starts and ends.
    """

    url: str = ""
    stop: str = "systemctl stop gpugauge.socket gpugauge"
    start: str = "systemctl start gpugauge"
    lifecycle: bool = False
    managers: frozenset[str] = frozenset()
    node: str = "NODE"
    port: str = str(DEFAULT_PORT)  # at which other machines ask it, "" if it answers its own only

    def command(self, words: str) -> str:
        """Return a command of gpugauge that asks this daemon."""
        return f"gpugauge {words}" + (f" --url {self.url}" if self.url else "")

    def on_nodes(self, words: str) -> str:
        """Return a command of gpugauge that asks the daemon of each node of a job, and where to run it."""
        if not self.port:
            return f"on each node of the job: gpugauge {words}"
        scheme = "https://" if self.url.startswith("https:") else ""
        return f"for each NODE of the job: gpugauge {words} --url {scheme}NODE:{self.port}"

    def fill(self, advice: str, uuid: str = "UUID", users: Collection[User] | None = None) -> str:
        """Return an advice about a GPU with the commands of this place. Its users are None if they are not known."""
        kinds, node = _MANAGED & self.managers.union(kind for kind, _ in users or ()), quote(self.node)
        if "pod" in kinds:
            # In a cluster other services read the GPU as well: only a reboot ends all of them.
            advice = _FROM_STOP.sub("systemctl reboot", advice)
        if "{drain}" in advice:
            advice = _REPAIRED.sub(lambda step: "; ".join((step[0], *_return(kinds, node))), advice, count=1)
        forget = self.command(f"forget {uuid}")
        forget = forget if self.lifecycle else f"start gpugauge with --web.enable-lifecycle, then {forget}"
        # The step that every view and the runbook name, and what it is here.
        drain = ": ".join(filter(None, ("drain the node", "; ".join(_drain(kinds, node, users or ())))))
        for name, text in {"drain": drain, "stop": self.stop, "start": self.start, "forget": forget}.items():
            advice = advice.replace(f"{{{name}}}", text)
        return advice


def _drain(kinds: Collection[str], node: str, users: Collection[User]) -> Iterator[str]:
    """Yield what ends the programs, those of a cluster by their manager, before any is killed."""
    if "pod" in kinds:
        yield f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
    if "slurm" in kinds:
        name = node.partition(".")[0]
        yield f"scontrol update nodename={name} state=drain reason=gpu; until its jobs have ended: squeue -w {name}"
    if others := [pid for kind, pid in users if kind not in _MANAGED]:
        pids = sorted({pid for pid in others if pid is not None})
        kill = f", otherwise kill {' '.join(map(str, pids))}" if 0 < len(pids) <= _MAX_PIDS else ""
        yield f"ask the owner to end the program{'s' if len(others) > 1 else ''}{kill}"


def _return(kinds: Collection[str], node: str) -> Iterator[str]:
    """Yield what lets the managers of a node start programs on it again."""
    if "pod" in kinds:
        yield f"kubectl uncordon {node}"
    if "slurm" in kinds:
        yield f"scontrol update state=resume nodename={node.partition('.')[0]}"


ANY_SITE = Site()


def site(settings: Settings, scheme: str, environ: Mapping[str, str] = os.environ, cgroup: Path = _CGROUP) -> Site:
    """Return the place of a daemon with these settings; `scheme` is that of its server."""
    web, node = settings.web, settings.kubernetes.node_name
    first = web.listen_address[0]
    in_pod = bool(node or environ.get("KUBERNETES_SERVICE_HOST"))
    managers = frozenset(("pod",) * in_pod + ("slurm",) * bool(settings.slurm.job_mapping_dir))
    node = node or ("NODE" if in_pod else socket.gethostname())
    port = str(first.port) if first.host not in _LOOPBACK else ""
    found = Site(daemon_address(scheme, first.host, first.port), "", "", web.enable_lifecycle, managers, node, port)
    where = "" if shares_host_users() else "in the container of gpugauge: "
    if web.enable_lifecycle:
        return replace(found, stop=where + found.command("release --for 10m"), start=where + found.command("attach"))
    if where:
        # The name of docs/install-container.md; the container does not know its own.
        stop, start = (f"{do} the container of gpugauge, such as podman {do} gpugauge" for do in ("stop", "start"))
        return replace(found, stop=stop, start=start)
    # From version 248 on, systemd passes the pid of the main process of a service.
    if not (environ.get("NOTIFY_SOCKET") or environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())):
        return replace(found, stop=f"kill {os.getpid()}, which is gpugauge", start="start gpugauge again")
    text = cgroup.read_text()
    unit = match[1] if (match := _UNIT.search(text)) else "gpugauge"
    manager = "systemctl --user" if "/user.slice/" in text else "systemctl"
    # The socket would start the service again.
    return replace(found, stop=f"{manager} stop {unit}.socket {unit}", start=f"{manager} start {unit}")


def daemon_address(scheme: str, host: str, port: int) -> str:
    """Return the address at which a command on the same machine asks the daemon, "" if it is its default."""
    host = "127.0.0.1" if host in _EVERY_ADDRESS else host
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    address = address if scheme == "http" else f"{scheme}://{address}"
    return "" if address == f"127.0.0.1:{DEFAULT_PORT}" else address
