"""The metadata of the pods that have processes of interest, asked for when an unknown pod appears."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from gpugauge.workload.controllers import Pod, owners
from gpugauge.workload.kubernetes.source import PodSource, PodSourceError
from gpugauge.workload.sources import Source

log = logging.getLogger(__name__)

_MAX_PODS, _MAX_KINDS = 4096, 32
# A pod that is missing in the answer, and a source that fails, are asked for again after this time.
_RETRY_SECONDS = 14.0
# So that the state of a source is not older, although no pod appears.
_CHECK_SECONDS = 300.0


class PodMetadata:
    """Keeps `pods`, by UID. Metadata that identifies a job does not change, so that a pod is asked for once."""

    def __init__(self, source: PodSource, clock: Callable[[], float] = time.monotonic) -> None:
        self.pods: Mapping[str, Pod] = {}
        self.source = Source("pods", log)
        self._server, self._clock = source, clock
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._asked: float | None = None
        self._failed = self._new = False
        self._unknown: set[owners.OwnerReference] = set()

    def want(self, uid: str) -> None:
        """Ask for a pod in the next refresh. Called by other threads than refresh()."""
        if uid not in self._wanted:
            self._wanted[uid] = None
            self._new = True
            if len(self._wanted) > _MAX_PODS:
                self._wanted.popitem(last=False)

    def refresh(self) -> Mapping[str, Pod]:
        """Ask if it is due, and return the pods; the same object if nothing changed."""
        age = None if self._asked is None else self._clock() - self._asked
        missing = any(uid not in self.pods for uid in list(self._wanted))
        due = age is None or age >= (_RETRY_SECONDS if self._failed or missing else _CHECK_SECONDS)
        if not due and (self._failed or not self._new):
            return self.pods
        self._asked, self._new, wanted = self._clock(), False, list(self._wanted)
        try:
            found = self._server.pods(frozenset(wanted))
        except PodSourceError as error:
            self._failed = True
            self.source.set_down(f"{error}; controllers of pods are not known")
            return self.pods
        self._failed = False
        self.source.set_up()
        known = {uid: pod for uid in wanted if (pod := found.get(uid) or self.pods.get(uid))}
        if known != self.pods:
            for pod in known.values():
                self._check(pod.owner)
            self.pods = known
        return self.pods

    def _check(self, owner: owners.OwnerReference | None) -> None:
        """Log a kind of controller that no rule names, once."""
        if owner is None or owners.is_known(owner):
            return
        kind = owners.OwnerReference(owner.group, owner.kind, "")
        if kind not in self._unknown and len(self._unknown) < _MAX_KINDS:
            self._unknown.add(kind)
            name = f"{owner.kind}.{owner.group}".rstrip(".")
            log.info("the controller %s is not known: each of its pods is a job of its own", name)
