"""State and causes of a process, from its evidence. A cause without evidence is not reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpugauge.node.node import Verdict
from gpugauge.verdict.causes import CAUSES, NEEDED
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.possible import possible
from gpugauge.verdict.savings import LEAST_SHARE, ROOTS, SLOWED, Loss, of_device, why_it_waits
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS, STALLED_SECONDS, facts_of, transition

# Ratios from 0 to 1.
_MIN_PRIMARY_SHARE = 0.12  # saving from which a cause is reported as the limit
_MIN_SURE_SHARE = 0.1  # … and what it saves at least, whatever the measured values are exactly
_MIN_LEAD_SHARE = 0.05  # by which it must exceed the cause reported before
_MIN_UNKNOWN_SHARE = 0.25  # of all that is lost, from which the limit is reported as unknown
_MIN_DOUBTFUL_SHARE = 0.4  # … and where load or pace vary, or kernels are slow and no counters show how they fill
_MOST_OTHER = 0.9  # what it must save at least of the saving of each other one, likewise
_MOST_OTHER_VARYING = 1.25  # … where shares vary, by the evidence about intervals
_MOST_WITHHELD = 2.0  # … of what is withheld from the thread or its loader, which is read less often
_TURNS_VARYING = 1.5  # … of what each other one saves if they take turns within the intervals
_TURNS = 1.25  # … of what each other one saves if they take turns, too fast to be seen, where evidence is doubtful
_WITHHELD_MOST = 0.5  # saving from which on withheld CPU or memory is the reason of what it slows down
_KERNELS = frozenset({"throttled", "contention"})  # slow ones, without counters
_SPINS = 0.98  # busy share of a GPU on which a kernel waits
_WAITS = frozenset({"waiting_for_peers", "slow_network"})
_OUTSIDE = frozenset({"counters"})  # evidence that is not of the hook, or of a training that steps


def judge(e: Evidence, before: Verdict | None = None, stalled_seconds: float = STALLED_SECONDS) -> Verdict:
    """Return the verdict on one process over one window. `before` is the last verdict, for the hysteresis of
    `limited_by` and for the state. For `stalled_seconds` see `facts_of`.
    """
    last = before.state if before else "unknown"
    state = transition(last, facts_of(e, last, stalled_seconds)).to
    undecidable = _undecidable(e, state)
    loss = _loss(e, state)
    shares: defaultdict[str, float] = defaultdict(float)
    for name, share in loss.shares.items():
        shares["unknown" if name in undecidable else name] += share
    causes = {name: round(share, 4) for name, share in shares.items() if share >= LEAST_SHARE}
    limited_by = _primary(loss.savings, before.limited_by if before else None, waits=not e.intervals)
    if limited_by and (limited_by in undecidable or not _is_sure(limited_by, e, state, before)):
        limited_by = "unknown" if sum(causes.values()) >= _MIN_UNKNOWN_SHARE else None
    minor = sum(share for share in shares.values() if share < LEAST_SHARE)
    return Verdict(state, "inside" if e.inside else "outside", causes, limited_by, undecidable, minor)


def _is_sure(named: str, e: Evidence, state: str, before: Verdict | None) -> bool:
    """Return whether a cause saves the most with all evidence that is possible, or was reported before."""
    if named == "unknown" or state != "training" or (before and named == before.limited_by):
        return True
    loss = _loss(e, state)
    saved = loss.savings.get(named, 0.0)
    explained = {named, *(SLOWED if named in ROOTS and saved > _WITHHELD_MOST else ())}
    turns = max([turn for name, turn in loss.turns.items() if name not in explained], default=0.0)
    least = _TURNS_VARYING if e.intervals else _TURNS if e.varies or e.doubtful else float(named in _WAITS)
    if (min(saved, loss.turns.get(named, 0.0)) if named in ROOTS else saved) < least * turns:
        return False
    if named in _KERNELS and saved < _MIN_DOUBTFUL_SHARE and any(device.sm_active is None for device in e.devices):
        return False
    for other in possible(e):
        savings = _loss(other, state).savings
        others = {name: saving for name, saving in savings.items() if name != named}
        least, most = _MIN_SURE_SHARE, max(others.values(), default=0.0)
        if e.intervals:
            withheld = max(others.get(root, 0.0) for root in ROOTS) if named in SLOWED else 0.0
            least = max(least, _MOST_OTHER_VARYING * most, _MOST_WITHHELD * withheld)
        elif e.varies:
            least = max(_MIN_DOUBTFUL_SHARE, 2.0 * most)
        elif named not in _WAITS:
            if others.get(why_it_waits(e), 0.0) >= _MIN_PRIMARY_SHARE:
                return False
            least = max(least, _MOST_OTHER * most)
        if savings.get(named, 0.0) < least:
            return False
    return True


def _undecidable(e: Evidence, state: str) -> frozenset[str]:
    """Return the causes that cannot be determined, because evidence for or against them is missing."""
    watched = e.inside and state != "starting" and e.window >= MIN_EVIDENCE_SECONDS
    kinds = NEEDED.keys() if watched else _OUTSIDE
    missing = {kind for kind in kinds for device in e.devices if NEEDED[kind][1](e, device)}
    return frozenset(cause.name for cause in CAUSES.values() if missing.intersection(cause.needs))


def _loss(e: Evidence, state: str) -> Loss:
    """Return the shares of the held GPU time that each cause cost; the unexplained part is "unknown"."""
    if state == "training_on_cpu":
        whole = {_why_on_cpu(e): 1.0} if e.host_has_gpu else {}
        return Loss(whole, whole)
    if state == "held_idle":
        return Loss({"unused_gpus": 1.0}, {"unused_gpus": 1.0})
    if state == "stalled" and _spins(e):
        return Loss({"collective": 1.0}, {"collective": 1.0})
    held = e.judged_devices
    if state not in {"training", "unknown"} or not held:
        return Loss()
    unused = {"unused_gpus": e.unused_devices / held}
    if state == "unknown" or e.window < MIN_EVIDENCE_SECONDS:
        idle = sum(1.0 - device.busy for device in e.devices if device.busy is not None)
        # Counted, but not reported as the limit: without the hook, or with little evidence.
        return Loss(unused | {"unknown": max(0.0, idle / held - e.paused)})
    if not e.intervals:
        return _mean([(e, 1.0)], held, unused, roots=not e.varies)
    parts = [(part, part.window / sum(part.window for part in e.intervals)) for part in e.intervals]
    found = _mean(parts, held, unused, roots=False)
    of_slow = max(found.savings.get(name, 0.0) for name in SLOWED)
    explains = max(found.savings.get(root, 0.0) for root in ROOTS) >= _MOST_OTHER * of_slow
    savings = {name: saved for name, saved in found.savings.items() if not (explains and name in SLOWED)}
    return Loss(_mean(parts, held, unused, roots=True).shares, savings, found.turns)


def _mean(parts: Sequence[tuple[Evidence, float]], held: int, unused: Mapping[str, float], *, roots: bool) -> Loss:
    """Return the mean loss of parts of the time, each with its share, on all GPUs."""
    shares: defaultdict[str, float] = defaultdict(float, unused)
    savings = shares.copy()
    turns = savings.copy()
    for e, part in parts:
        for loss in (of_device(e, device, roots=roots) for device in e.devices):
            waits = _first(loss.savings) if len(parts) > 1 else {}
            # In pauses nothing is lost, and their removal is no saving.
            of_all = zip((shares, savings, turns), loss._replace(savings=waits or loss.savings), strict=True)
            for (total, found), of in zip(of_all, (1.0 - e.paused, 1.0, 1.0), strict=True):
                for name, share in found.items():
                    total[name] += part * of * share / held
    return Loss(shares, savings, turns)


def _spins(e: Evidence) -> bool:
    """Return whether the GPUs of a training that stalls are busy with a kernel that waits for another rank."""
    if not e.inside:
        return True
    return (e.world_size or 1) > 1 and bool(e.devices) and all((d.busy or 0.0) >= _SPINS for d in e.devices)


def _why_on_cpu(e: Evidence) -> str:
    if e.build == "cpu":
        return "no_cuda_build"
    if e.visible_devices == 0:
        return "no_visible_device"
    if e.driver_too_old:
        return "driver_mismatch"
    if e.arch_supported is False:
        return "unsupported_arch"
    return "model_on_cpu"


def _first(savings: Mapping[str, float]) -> dict[str, float]:
    """Return the savings of waits for other ranks if they matter: a faster rank would only wait longer."""
    return {wait: savings[wait] for wait in _WAITS & savings.keys() if savings[wait] >= _MIN_PRIMARY_SHARE}


def _primary(savings: Mapping[str, float], before: str | None, *, waits: bool) -> str | None:
    if waits and (before_all := _first(savings)):
        return next(iter(before_all))
    first = max(savings, key=lambda name: savings[name], default="")
    held, most = (savings.get(name, 0.0) for name in (before or "", first))
    if held >= _MIN_PRIMARY_SHARE and most - held < _MIN_LEAD_SHARE:
        return before
    return first if most >= _MIN_PRIMARY_SHARE else None
