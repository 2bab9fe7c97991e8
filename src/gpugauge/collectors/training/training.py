"""Training processes, from their reports through the hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.collectors.training import loader_rows, session_rows
from gpugauge.collectors.training.continued import continued
from gpugauge.collectors.training.surroundings import surroundings
from gpugauge.driver.bus import pci_address
from gpugauge.metric import Family, LabelValues, Metric, Table, families
from gpugauge.sessions.session import NO_OWNER, Counters, Session, SessionSource
from gpugauge.snapshot import Section
from gpugauge.verdict import mistakes
from gpugauge.workload.procfs import Procfs, process_hash
from gpugauge.workload.registry import Registry, Want
from gpugauge.workload.workloads import Workloads

# Exported while the process is connected, and for some minutes after its end as well.
LIVE = session_rows.LIVE + loader_rows.LIVE
LASTING = session_rows.LASTING + loader_rows.LASTING

_sessions, _hook, _by_reason = Table[int](), Table[Counters](), Table[Counters]("reason")

SESSIONS = (_sessions.gauge("gpugauge_hook_sessions", "Connected training processes.", lambda connected: connected),)
HOOK_SOCKET: tuple[Metric, ...] = (
    _by_reason.counter(
        "gpugauge_hook_rejected_total",
        "Connections to the hook's socket that were closed because of invalid messages or a limit, by reason.",
        lambda counters: counters.rejected,
    ),
    _by_reason.counter(
        "gpugauge_hook_receiver_replacements_total",
        "Replacements of the process that receives from training processes: it was stuck, too many of its closes were "
        "blocked, or it ended.",
        lambda counters: counters.replaced,
    ),
    _hook.gauge(
        "gpugauge_hook_receiver_replaced_timestamp_seconds",
        "Unix time of the last replacement of the receiver; absent if there was none.",
        lambda counters: counters.replaced_at,
    ),
    _hook.counter(
        "gpugauge_hook_sessions_cut_total",
        "Training processes whose series were cut, first those of the loader, devices and parameters, then all: the "
        "limit of series of their user, of their cgroup, or of all is reached.",
        lambda counters: counters.cut,
        "limit",
    ),
    _hook.gauge(
        "gpugauge_hook_bans",
        "Users whose connections are refused for some minutes, because closing a descriptor that they passed blocks.",
        lambda counters: counters.banned,
    ),
    _by_reason.counter(
        "gpugauge_trainings_ended_total",
        "Training processes that ended, by reason: finished (exit code 0), error, out_of_memory, interrupted (SIGINT "
        "or exit code 130), killed (another signal or a crash), oom_killed (by the kernel, for memory), rejected "
        "(invalid messages), other (the program was replaced, or the reason is not known).",
        lambda counters: counters.ended,
    ),
)


class _Sum(NamedTuple):
    """A session, and those before it of the same process, with their counts added up: without and with it."""

    earlier: Session
    own: Session
    both: Session


class TrainingCollector(RegisteredCollector):
    """Rows by process. `process_id` returns the label of a session, None if /proc does not show its pid."""

    name = "training"
    metrics = LIVE + LASTING + SESSIONS + HOOK_SOCKET

    def __init__(
        self,
        sessions: SessionSource,
        process_id: Callable[[Session], str | None],
        workloads: Callable[[Session], Workloads | None] = lambda _: None,
    ) -> None:
        self._sessions = sessions
        self._process_id, self._workloads = process_id, workloads
        self._wants: dict[Registry, dict[str, Want]] = {}
        self._owners: dict[str, tuple[str, ...]] = {}  # by session, values of JOB_LABELS
        self._labels: dict[str, str] = {}
        self._sums: dict[str, _Sum] = {}  # by session
        self._seen: tuple[Sequence[Session], Counters] | None = None
        self._shown: dict[str, Session] = {}  # by label
        self._section = Section(self.name, ())

    @classmethod
    def create(cls, sources: Sources) -> TrainingCollector | None:
        """Return a collector of the node's sessions, None without a source of sessions."""
        if sources.sessions is None:
            return None
        of = sources.session_workloads or (lambda _: sources.workloads)
        return cls(sources.sessions, lambda s: _process_id(of(s).procfs, s), of)

    def collect(self, tick: Tick) -> Section:
        """Return the families of all sessions. Raises SessionsError if the hook's socket is no longer read."""
        view, counters = self._sessions.view(), self._sessions.counters()
        if self._seen is None or self._seen[0] is not view:
            self._labels = {session.hello.session: self._label(session) for session in view}
        named = self._take_owners(view)
        if named or self._seen is None or self._seen[0] is not view or self._seen[1] is not counters:
            self._seen = (view, counters)
            self._section = Section(self.name, self._families(view, counters, tick))
        tick.node.sessions, tick.node.hook = self._shown, counters
        return self._section

    def _take_owners(self, view: Sequence[Session]) -> bool:
        """Note the jobs of the connected sessions; return whether any is another. They are kept after the end."""
        owners: dict[str, tuple[str, ...]] = {}
        wants = {registry: dict[str, Want]() for registry in self._wants}  # also those without a session now
        for session in view:
            hello, owner = session.hello, self._owners.get(session.hello.session)
            there = self._workloads(session) if session.connected or owner is None else None
            if there and session.connected and session.peer_pid > 0:
                want = Want(session.peer_pid, session.peer_start, sent=hello.facts)
                wants.setdefault(there.registry, {}).setdefault(self._labels[hello.session], want)
            elif there and owner in (None, NO_OWNER):  # /proc does not show it, or it ended before the first look
                known = there.registry.get(self._labels[hello.session])
                claim = hello.facts, hello.session, session.peer_uid, hello.pid_namespace
                owner = (known.workload if known else there.claimed(*claim)).job_labels()
            owners[hello.session] = owner or NO_OWNER
        for registry, each in wants.items():
            registry.want(self.name, each)
        found = {label: who for registry, each in wants.items() for label in each if (who := registry.get(label))}
        for session in view:
            if session.connected and (who := found.get(self._labels[session.hello.session])):
                owners[session.hello.session] = who.workload.job_labels()
        before, self._owners, self._wants = self._owners, owners, wants
        return owners != before

    def _families(self, view: Sequence[Session], counters: Counters, tick: Tick) -> tuple[Family, ...]:
        addresses = {
            f"PCI-{pci_address(d.reading.pci_bus_id)}": d.uuid for d in tick.driver.devices if d.reading.pci_bus_id
        }
        subjects = {label: _named(session, addresses) for label, session in self._subjects(view).items()}
        owned = {label: s._replace(owner=self._owners.get(s.hello.session, NO_OWNER)) for label, s in subjects.items()}
        around = surroundings(tick.node, {label: s for label, s in owned.items() if s.connected})
        made = {label: mistakes.found({**owned[label].facts, **facts}) for label, facts in around.items()}
        self._shown = {label: session._replace(mistakes=made.get(label, {})) for label, session in owned.items()}
        lasting: list[tuple[LabelValues, Session]] = [((label,), session) for label, session in self._shown.items()]
        live = [subject for subject in lasting if subject[1].connected]
        own = families(SESSIONS, [((), sum(s.connected for s in view))]) + families(HOOK_SOCKET, [((), counters)])
        return families(LIVE, live) + families(LASTING, lasting) + own

    def _subjects(self, view: Sequence[Session]) -> dict[str, Session]:
        """Return the sessions by label; of several of a process (exec keeps the pid) the last, with all counts."""
        subjects: dict[str, Session] = {}
        sums: dict[str, _Sum] = {}
        for session in view:
            name = session.hello.session
            label = self._labels[name]
            earlier = subjects.get(label)
            if earlier is not None and earlier.connected:
                label = process_hash(name)  # no hook has two sessions at a time
            else:
                known = self._sums.get(name)
                # The earlier sessions are dropped some minutes after their end.
                earlier = earlier or (known.earlier if known else None)
                if earlier is not None:
                    # Ended sessions do not change, and a process may have begun thousands.
                    if known is None or known.earlier is not earlier or known.own is not session:
                        known = _Sum(earlier, session, continued(earlier, session))
                    sums[name] = known
                    session = known.both  # noqa: PLW2901 - the rest of the loop is about the sum
            subjects[label] = session
        self._sums = sums
        return subjects

    def _label(self, session: Session) -> str:
        """Return the `process` label of a session. It is set once: later the pid may belong to another process."""
        known = self._labels.get(session.hello.session)
        if known is not None:
            return known
        may_be_known = session.peer_pid > 0 and (session.connected or session.peer_start is not None)
        visible = self._process_id(session) if may_be_known else None
        return visible or process_hash(session.hello.session)


def _named(session: Session, addresses: Mapping[str, str]) -> Session:
    """Return a session with the uuids of the GPUs that its torch has named by their addresses, as with ROCm."""
    snap = session.snap
    if snap is None or not any((device.uuid or "").startswith("PCI-") for device in snap.devices):
        return session
    named = tuple(replace(device, uuid=addresses.get(device.uuid or "", device.uuid)) for device in snap.devices)
    return session._replace(snap=replace(snap, devices=named))


def _process_id(procfs: Procfs, session: Session) -> str | None:
    """Return the `process` label of the process that connected, None if its pid is another process there. Of one that
    ended before the first look, its start is still known.
    """
    if session.peer_start is not None and not session.connected:
        return process_hash(procfs.boot_id, str(session.peer_pid), str(session.peer_start))
    if session.peer_start is not None and procfs.start_time(session.peer_pid) != session.peer_start:
        return None
    return procfs.process_id(session.peer_pid)
