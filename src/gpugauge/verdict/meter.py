"""Seconds of a process in each state, exact at every verdict, from its seconds in each phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugauge.verdict.states import RESTING, state_of_phase
from gpugauge.wire.shares import NAMED_PHASES

_TOLERANCE_SECONDS = 0.5


@dataclass(slots=True)
class PhaseMeter:
    """Divides the seconds of a session among the states. The phase that a wait for a batch belongs to is reported after
    its end; its seconds are held back until then, at most until the second call after its end.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase, at the last call
    waits: Mapping[str, float] = field(default_factory=dict)  # by phase, at the last call
    _held_back: float = 0.0
    _ended: float = 0.0  # the part of it that belongs to waits which have ended

    def skip(self, seconds: Mapping[str, float], waits: Mapping[str, float], share: float) -> None:
        """Leave out the share of the session so far, 0 to 1."""
        self.seconds = {phase: share * spent for phase, spent in seconds.items()}
        self.waits = {phase: share * waited for phase, waited in waits.items()}

    def advance(
        self,
        seconds: Mapping[str, float],
        waits: Mapping[str, float],
        state: str,
        *,
        began: bool,
        on_cpu: bool,
        waiting: float | None,
    ) -> dict[str, float]:
        """Return the seconds in each state since the last call; `seconds` and `waits` are totals by phase. `state` is
        the state at the end: one that no phase explains has all of the time. `began`: the first step or batch was
        before the last call. `waiting` is the duration of a wait that has not ended, None at the end of the session.
        """
        if sum(seconds.values()) < sum(self.seconds.values()) - _TOLERANCE_SECONDS:
            # Another program in the same process, after exec.
            self.seconds, self.waits, self._held_back, self._ended, began = {}, {}, 0.0, 0.0, False
        spent = {phase: max(0.0, total - self.seconds.get(phase, 0.0)) for phase, total in seconds.items()}
        waited = {phase: max(0.0, total - self.waits.get(phase, 0.0)) for phase, total in waits.items()}
        self.seconds, self.waits = dict(seconds), dict(waits)
        if state in RESTING and state != "starting":
            return {state: sum(spent.values())}
        spent = self._with_waits(spent, waited, waiting)
        found: defaultdict[str, float] = defaultdict(float)
        for phase, part in spent.items():
            # The time until the first step is `starting` also if it is counted together with the time after it.
            before = phase == "starting" and not began
            found["starting" if before else state_of_phase(phase, began=True, on_cpu=on_cpu)] += part
        return {state: part for state, part in found.items() if part}

    def _with_waits(
        self, spent: Mapping[str, float], waited: Mapping[str, float], waiting: float | None
    ) -> dict[str, float]:
        """Return the seconds by phase, without `loading`: each wait belongs to its phase."""
        found: defaultdict[str, float] = defaultdict(float, spent)
        loading = left = self._held_back + found.pop("loading", 0.0)
        for phase in sorted(waited, key=lambda phase: phase not in NAMED_PHASES):
            part = min(left, waited[phase])
            found[phase if phase in NAMED_PHASES else "training"] += part
            left -= part
        overdue = min(left, max(0.0, self._ended - (loading - left)))
        self._held_back = 0.0 if waiting is None else left - overdue
        self._ended = max(0.0, self._held_back - (waiting or 0.0))
        found["training"] += left - self._held_back
        return dict(found)
