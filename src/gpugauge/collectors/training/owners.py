"""The jobs of training processes, resolved in a thread of its own: reading a process that hangs may never return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpugauge.collectors.background import Background
from gpugauge.collectors.base import Node
from gpugauge.sessions.session import NO_OWNER, Session
from gpugauge.workload.identity import Workload

JobLabels = tuple[str, ...]  # values of JOB_LABELS


class Owners:
    """The job of each session. It is resolved while the process is connected, and kept."""

    def __init__(self, workload: Callable[[Session], Workload]) -> None:
        self._workload = workload
        self._known: dict[str, JobLabels] = {}
        self._resolving: Background[list[tuple[str, JobLabels]]] = Background("session jobs")

    def update(self, view: Sequence[Session]) -> bool:
        """Resolve the jobs that are not known yet; return whether any changed."""
        names = {session.hello.session for session in view}
        self._known = {name: owner for name, owner in self._known.items() if name in names}
        changed = self._take()
        open_ = [session for session in view if session.connected and not self._is_resolved(session)]
        if open_ and self._resolving.running is None:
            self._resolving.start(lambda: [(s.hello.session, self._workload(s).job_labels()) for s in open_])
            changed |= self._take()
        return changed

    def of(self, session: Session) -> JobLabels:
        """Return the values of JOB_LABELS of a session, empty ones before they are known."""
        return self._known.get(session.hello.session, NO_OWNER)

    def _is_resolved(self, session: Session) -> bool:
        _, job, *_ = self.of(session)
        return bool(job)

    def _take(self) -> bool:
        found = dict(self._resolving.take() or ())
        changed = any(self._known.get(name, NO_OWNER) != owner for name, owner in found.items())
        self._known |= found
        return changed


def workload_of(node: Node, session: Session) -> Workload:
    """Return the workload of the process of a session: from /proc, or from the hook's words if /proc does not show it.

    A process that has just ended has an empty one.
    """
    workloads = node.session_workloads(session) if node.session_workloads else node.workloads
    if session.peer_pid > 0 and (node.session_workloads or node.procfs_of(session) is node.procfs):
        return workloads.resolve(session.peer_pid, start=session.peer_start)
    hello = session.hello
    return workloads.claimed(hello.facts, hello.session, session.peer_uid, hello.pid_namespace)
