"""The repair of the GPUs of a node, in commands that work as printed on the machine of a daemon. One plan is for all
faults: a node that is given back after the repair of one GPU still has the others.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from gpugauge.driver.api import Device
from gpugauge.driver.vendors.vendor import RESTART
from gpugauge.faults.table import FAULTS, Ailment, Fault, order
from gpugauge.settings.kinds import DEFAULT_PORT
from gpugauge.settings.model import Settings
from gpugauge.workload.users import shares_host_users

# The marks in an advice: what repairs the GPU. A person does what follows "hand", on the drained node. What follows
# "reboot" is what it does besides a reset. "later" says that all this can wait until the jobs end.
_MARK = re.compile(r"{(later|hand|reset|reset_all|reboot|power)}([^;]*)")
_REBOOT = "systemctl reboot, which ends every program of the node"
SEE = "see the repair"
"""Stands in an advice for what the plan has."""
REBOOTS = "systemctl reboot|switch the machine off and on"
"""The commands of Advice that end every program of the node, as a regular expression."""
_LAST = f"ask the owners of all programs of the node, then {_REBOOT.partition(',')[0]}"
_BACK = "give the node back to its users"
_LATER = "later"  # begins the one step that waits though others do not
_MAX_PIDS = 8  # in a plan
_RESETS = {"reset", "reset_all"}
_EVERY_ADDRESS = {"", "0.0.0.0", "::", "localhost"}  # noqa: S104  (compared, not bound)
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_UNIT = re.compile(r"/([\w@.:-]+)\.service$", re.MULTILINE)
# By kind of workload: what shows in the file system of cgroups, v2 or v1, that its manager runs on the node.
_MANAGERS = {
    "pod": ("kubepods*", "systemd/kubepods*"),
    "slurm": ("system.slice/slurmd.service", "system.slice/*slurmstepd.scope", "systemd/system.slice/slurmd.service"),
}
_ID = re.compile("[0-9a-f]{12}")  # of a container, which is its host name by default
# The id of a container in the path of its cgroup, or in the place from which its /etc/hosts is mounted.
_CONTAINER = re.compile(r"(?:containers/|docker[/-]|libpod-)([0-9a-f]{12})[0-9a-f]{52}\b")


class User(NamedTuple):
    """A program on a node: the kind of its workload, its pid if that is known, and its owner in words."""

    kind: str
    pid: int | None
    owner: str = ""


class Command(str):
    """A step that repairs GPUs."""


class Advice(NamedTuple):
    """What to do about a fault of a GPU: all of it in lines. Of one whose `text` has the plan also its parts: when the
    GPU is repaired, by which command, and what else is to do.
    """

    text: str
    when: str = ""
    command: str = ""
    note: str = ""


class Need(NamedTuple):
    """What repairs a GPU, by its index or uuid: a mark of an advice on a fault, and the text after it. `later` is
    whether it can wait until the jobs end.
    """

    device: Device
    name: object
    mark: str
    text: str
    fault: Fault | None
    later: bool


def needs(device: Device, advice: Iterable[str], fault: Fault | None = None) -> list[Need]:
    """Return what the advice on the faults of a GPU, or on one of the table, says that repairs it."""
    name = device.uuid if device.reading.index < 0 else device.reading.index
    found = [(*mark, "{later}" in each) for each in advice for mark in _MARK.findall(each)]
    return [Need(device, name, mark, text, fault, later) for mark, text, later in found if mark != "later"]


def with_loss(advice: str, others: Iterable[str | None]) -> str:
    """Return the advice on the gravest fault of a GPU, with what that on another says of the results of programs."""
    lost = RESTART not in advice and any(RESTART in (other or "") for other in others)
    return "; ".join(filter(None, (RESTART if lost else "", advice)))


def heading(needs: Iterable[Need]) -> str:
    """Return which GPUs a plan repairs, and when."""
    found = list(needs)
    names = ", ".join(dict.fromkeys(str(need.name) for need in found))
    return f"Repair of GPU{'s' if ', ' in names else ''} {names}, {_when(all(need.later for need in found))}"


def _when(later: bool) -> str:
    return "when the jobs have ended" if later else "now"


class Site(NamedTuple):
    """The place of a daemon, by default that of none. `url` is empty for the default address, `inside` stands before
    commands of gpugauge on its machine, `check` is a whole one, and `managers` are the kinds of workloads on the node
    that a manager starts and ends.
    """

    url: str = ""
    stop: str = ""
    start: str = ""
    check: str = "gpugauge doctor"
    inside: str = ""
    lifecycle: bool = False
    managers: frozenset[str] = frozenset()
    node: str = "NODE"
    port: str = str(DEFAULT_PORT)  # at which other machines ask it, "" if it answers its own only
    address: str = ""  # at which they ask it, if that is known

    def command(self, words: str) -> str:
        """Return a command of gpugauge that asks this daemon."""
        return f"gpugauge {words}" + (f" --url {self.url}" if self.url else "")

    def asked(self, words: str) -> str:
        """Return a command of gpugauge for any machine that asks this daemon; of one for its own, where it works."""
        return f"gpugauge {words} --url {self.address}" if self.address else self.inside + self.command(words)

    def on_nodes(self, words: str) -> str:
        """Return a command of gpugauge that asks the daemon of each node of a job, and where to run it."""
        if not self.port:
            return f"on each node of the job: {self.command(words)}"
        scheme = "https://" if self.url.startswith("https:") else ""
        return f"for each NODE of the job: gpugauge {words} --url {scheme}NODE:{self.port}"

    def fill(self, advice: str, uuid: str = "UUID") -> str:
        """Return an advice about a GPU in words. The plan stands for what it has, and is named where more follows."""
        forget = self.command(f"forget {uuid}")
        forget = forget if self.lifecycle else f"start gpugauge with --web.enable-lifecycle, then {forget}"
        parts = [_MARK.sub(SEE, part) for part in advice.split("; ") if "{later}" not in part]
        while parts and parts[-1].removeprefix("then ") == SEE:
            parts.pop()
        return "; ".join(dict.fromkeys(parts)).replace("{forget}", forget)

    def in_lines(self, needs: Sequence[Need]) -> str:
        """Return the plan with a line for each step, as for alerts, "" without one."""
        steps = (f"{number}. {step}" for number, step in enumerate(self.plan(needs), 1))
        return f"{heading(needs)}, in this order:\n" + ";\n".join(steps) if needs else ""

    def alerted(self, device: Device, faults: Sequence[Ailment], every: Sequence[Need]) -> Iterator[Advice]:
        """Yield what the alert about each fault of a GPU says; `every` has the needs of all GPUs. The plan is said
        once: by the gravest that needs it and that no other one explains, whose alert is notified, and by each critical
        one, which pages.
        """
        explained = {name for each in faults for name in FAULTS[each.runbook].explains}
        needing = sorted(
            (each for each in faults if needs(device, [each.advice])),
            key=lambda each: (each.runbook in explained, order(each.runbook)),
        )
        advice = [self.fill(each.advice, device.uuid) for each in faults]
        for each, own in zip(faults, advice, strict=True):
            if each not in needing and (each.runbook not in explained or not needing):
                yield Advice(own)
            elif each is needing[0] or (each.grave and each.runbook not in explained):
                yield self._planned(device, with_loss(own, advice).split("; "), every)
            else:
                also = f"The repair is that of {needing[0].runbook}, also in gpugauge status"
                yield Advice(". ".join(filter(None, (own, also))))

    def _planned(self, device: Device, own: Sequence[str], every: Sequence[Need]) -> Advice:
        """Return the plan: before it what it cannot undo, behind it what may follow."""
        before, behind = (
            [each for each in own if each.removeprefix("then ") != SEE and (each == RESTART) == first]
            for first in (True, False)
        )
        text = ".\n".join(filter(None, (*before, self.in_lines(every), "; ".join(behind))))
        commands = [step for step in self.plan(every) if isinstance(step, Command)]
        if not commands:
            return Advice(text)
        own_reset = {device.vendor.fill("{reset_gpu}", need.name) for need in every if need.device.uuid == device.uuid}
        # A GPU that is not reset is repaired by the last.
        command = next((each for each in commands if each in own_reset), commands[-1])
        when = _when(command.startswith(_LATER) or all(need.later for need in every))
        short = match[0] if (match := re.search(REBOOTS, command)) else str(command)
        return Advice(text, when, short, "; ".join((*before, *behind)))

    def plan(
        self,
        needs: Sequence[Need],
        users: Mapping[str, Sequence[User]] | None = None,
        *,
        simulated: bool = False,
        instead: str = "",
    ) -> Iterator[str]:
        """Yield the steps that repair GPUs, in their order; `users` are those of each GPU of the node, and of none
        under "", none if they are not known. No command ends those that are `simulated`. `instead` is a step that
        replaces the resets.
        """
        if not needs:
            return
        marks, users = {need.mark for need in needs}, users or {}
        kinds = self.managers.union(user.kind for found in users.values() for user in found)
        now = [need for need in needs if need.mark != "reboot" or not need.later]
        urgent = {need.mark for need in now if not need.later}
        waiting = [need for need in needs if need not in now]
        apart = waiting and "reset" in urgent and marks <= {"reset", "hand", "reboot"} and not kinds & {*_MANAGERS}
        repaired = {need.device.uuid for need in now}
        if apart and (not users or any(found for uuid, found in users.items() if uuid not in repaired)):
            # Programs on other GPUs may go on, as no manager has ended them; if they can end, one reboot does it all.
            # Views show the first command of a plan alone: that is the reset.
            also, others = _does(waiting), [u for uuid, found in users.items() for u in found if uuid not in repaired]
            once = f"if the other programs of the node can end now, too{_said(others)}, reboot it in place of the next "
            once += f"steps and go on with the check: it also {also}"
            yield from self.plan(now, users, simulated=simulated, instead=once)
            when = f"{_LATER}, if you did not reboot it: when all programs of the node have ended"
            yield Command(f"{when}, systemctl reboot, which {also}")
            yield from _under_load(waiting)
            return
        # In a cluster other services read the GPUs as well: only a reboot ends all of them.
        reboot = "reboot" in marks or ("pod" in kinds and bool(marks & _RESETS))
        ended = users if reboot or marks & {"reset_all", "power"} else {need.device.uuid for need in needs}
        later = all(need.later for need in needs)
        others = [user for uuid in ended for user in users.get(uuid, ()) if user.kind not in _MANAGERS]
        programs = _ended(others, later=later, simulated=simulated) if others or not (users or kinds) else ""
        programs += "" if others or not programs else f" (see {self.asked('status')})"
        drain, back = self._drained(kinds, programs, later=later)
        whole = {need.device.vendor for need in needs if need.mark == "reset_all"}  # one command resets their GPUs
        resets = dict.fromkeys(
            Command(
                need.device.vendor.fill("{reset_gpus}" if need.device.vendor in whole else "{reset_gpu}", need.name)
            )
            for need in needs
            if need.mark in _RESETS
        )
        yield from _shown(needs, lambda fault: fault.before, "note what the repair clears")
        yield from drain
        yield from dict.fromkeys(f"GPU {need.name}: {need.text}" for need in needs if need.mark == "hand")
        if "power" in marks:
            yield Command("switch the machine off and on")
        elif reboot:
            why = "" if "reboot" in marks else ", as services of the cluster hold GPUs after a drain, too"
            yield Command(f"{_REBOOT} and {_does(needs)}{why}")
        elif resets:
            if instead:
                yield instead
            holders = " and ".join(dict.fromkeys(need.device.vendor.fill("{holders}") for need in needs))
            last = f"if a reset fails, stop services that hold the GPU ({holders}), reset again, or {_LAST}"
            yield from filter(None, (self.stop, *resets, last, self.start))
        if back and ": " not in self.check:
            yield f"give the node back if all is well: {' && '.join((self.check, *back))}"
        else:
            before = "" if back else f" before you {_BACK}"
            yield f"check that all is well{before}{', ' if ': ' in self.check else ': '}{self.check}"
            yield from (f"only if so: {each}" for each in back)
        yield from _under_load(needs)

    def _drained(self, kinds: Collection[str], programs: str, *, later: bool) -> tuple[list[str], list[str]]:
        """Return the steps that drain the node, and the commands that give it back. `programs` is the step that ends
        what no manager does, if there is any.
        """
        node, short = quote(self.node), quote(self.node.partition(".")[0])
        steps, back = [], []
        if "pod" in kinds:
            if later:
                pods = f"kubectl get pods -A --field-selector spec.nodeName={node}"
                steps += [f"kubectl cordon {node}", f"go on when its pods with GPUs have ended: {pods}"]
            steps.append(f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data")
            back.append(f"kubectl uncordon {node}")
        if "slurm" in kinds:
            steps.append(f"scontrol update nodename={short} state=drain reason=gpu")
            steps += [] if later else [f"ask the owners of its jobs, then: scancel -w {short}"]
            steps.append(f"go on when its jobs have ended: squeue -w {short}")
            back.append(f"scontrol update state=resume nodename={short}")
        if not steps:
            return [", ".join(filter(None, ("start nothing new on the node", programs)))], back
        return [f"drain the node: {steps[0]}", *steps[1:], *filter(None, [programs])], back


def _ended(users: Sequence[User], *, later: bool, simulated: bool) -> str:
    """Return the step that ends programs, with those that are known."""
    named = sorted({user.pid for user in users if user.pid is not None})
    ask = "go on when its programs have ended" if later else "ask the owners to end their programs"
    kill = "" if later or not 0 < len(named) <= _MAX_PIDS else f", otherwise kill {' '.join(map(str, named))}"
    kill = ", otherwise end them" if kill and simulated else kill
    return f"{ask}{_said(users)}{kill}"


def _said(users: Sequence[User]) -> str:
    """Return the known programs of each owner in brackets, "" without any."""
    owners = {user.pid: user.owner or "owner unknown" for user in users if user.pid is not None}
    pids: dict[str, list[str]] = {}
    for pid in sorted(owners)[:_MAX_PIDS]:
        pids.setdefault(owners[pid], []).append(str(pid))
    said = "; ".join(f"{owner}: pid {' '.join(found)}" for owner, found in pids.items())
    more = len(owners) - _MAX_PIDS
    return f" ({said}{f'; and {more} more' if more > 0 else ''})" if said else ""


def _under_load(needs: Iterable[Need]) -> Iterator[str]:
    """Yield what shows that the repair of each GPU was one."""
    return _shown(needs, lambda fault: fault.after, "when it has load again, expect {}")


def _shown(needs: Iterable[Need], command: Callable[[Fault], str], when: str) -> Iterator[str]:
    found: dict[tuple[object, str], str] = {}  # each command of a GPU once
    for need in needs:
        if (fault := need.fault) and (shown := need.device.vendor.fill(command(fault), need.name)):
            text = f"GPU {need.name} ({fault.word}), {when.format(fault.expected)}: {shown}"
            found.setdefault((need.name, shown), text)
    yield from found.values()


def _does(needs: Sequence[Need]) -> str:
    """Return what a reboot does for GPUs, for each the gravest alone."""
    does = {need.name: "resets" for need in needs if need.mark in _RESETS}
    does |= {need.name: need.text or "repairs" for need in reversed(needs) if need.mark == "reboot"}
    verbs = {verb: [str(name) for name in does if does[name] == verb] for verb in does.values()}
    found = (f"{verb} GPU{'s' if len(names) > 1 else ''} {', '.join(names)}" for verb, names in verbs.items())
    return " and ".join(found)


ANY_SITE = Site()


def site(
    settings: Settings, scheme: str, cgroups: Path, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> Site:
    """Return the place of a daemon with these settings; `scheme` is that of its server, `cgroups` are the node's."""
    web, node = settings.web, settings.kubernetes.node_name
    first = web.listen_address[0]
    in_pod = bool(node or environ.get("KUBERNETES_SERVICE_HOST"))
    known = {"pod": in_pod, "slurm": bool(settings.slurm.job_mapping_dir)}
    managers = (kind for kind, names in _MANAGERS.items() if known[kind] or any(map(any, map(cgroups.glob, names))))
    found = Site(
        daemon_address(scheme, first.host, first.port),
        lifecycle=web.enable_lifecycle,
        managers=frozenset(managers),
        node=node or ("NODE" if in_pod or _ID.fullmatch(socket.gethostname()) else socket.gethostname()),
        port=str(first.port) if first.host not in _LOOPBACK else "",
    )
    if in_container := not shares_host_users():
        engine = "" if in_pod else _engine(root)
        inside = engine.format("exec") + " " if engine else f"in the {'pod' if in_pod else 'container'} of gpugauge: "
        found = found._replace(inside=inside)
        stop, start = ((engine or "{} the container of gpugauge").format(do) for do in ("stop", "start"))
    if found.port and not in_pod:  # nobody knows the address of a pod
        address = f"{quote(found.node)}:{found.port}"
        found = found._replace(address=address if scheme == "http" else f"{scheme}://{address}")
    found = found._replace(check=found.asked("status --fail-on health"))
    if web.enable_lifecycle:
        stop, start = (found.inside + found.command(words) for words in ("release --for 10m", "attach"))
    if in_container or web.enable_lifecycle:
        return found._replace(stop=stop, start=start)
    # From version 248 on, systemd passes the pid of the main process of a service.
    if not (environ.get("NOTIFY_SOCKET") or environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())):
        return found._replace(stop=f"kill {os.getpid()}, which is gpugauge", start="start gpugauge again")
    text = (root / "proc/self/cgroup").read_text()
    unit = match[1] if (match := _UNIT.search(text)) else "gpugauge"
    manager = "systemctl --user" if "/user.slice/" in text else "systemctl"
    # The socket would start the service again.
    return found._replace(stop=f"{manager} stop {unit}.socket {unit}", start=f"{manager} start {unit}")


def _engine(root: Path) -> str:
    """Return the command of the engine for the container of this process, "" if it is not known."""
    name = "podman" if (root / "run/.containerenv").exists() else "docker" if (root / ".dockerenv").exists() else ""
    text = "".join((root / "proc/self" / file).read_text() for file in ("cgroup", "mountinfo"))
    return f"{name} {{}} {match[1]}" if name and (match := _CONTAINER.search(text)) else ""


def daemon_address(scheme: str, host: str, port: int) -> str:
    """Return the address at which a command on the same machine asks the daemon, "" if it is its default."""
    host = "127.0.0.1" if host in _EVERY_ADDRESS else host
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    address = address if scheme == "http" else f"{scheme}://{address}"
    return "" if address == f"127.0.0.1:{DEFAULT_PORT}" else address
