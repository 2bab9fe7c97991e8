"""State and causes of a process, from its evidence. A cause without evidence is not reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpugauge.node.judged import Verdict
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.savings import LEAST_SHARE, Loss, of_device
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS, STALLED_SECONDS, facts_of, next_state

# Ratios from 0 to 1.
_MIN_PRIMARY_SHARE = 0.12  # saving from which a cause is reported as the limit
_MIN_LEAD_SHARE = 0.05  # by which it must exceed the cause reported before

_NEED_COUNTERS, _NEED_WAITS = (
    frozenset(cause.name for cause in CAUSES.values() if cause.needs == needed) for needed in ("counters", "waits")
)


def judge(e: Evidence, before: Verdict | None = None, stalled_seconds: float = STALLED_SECONDS) -> Verdict:
    """Return the verdict on one process over one window. `before` is the last verdict, for the hysteresis of
    `limited_by` and for the state. For `stalled_seconds` see `facts_of`.
    """
    last = before.state if before else "unknown"
    state = next_state(last, facts_of(e, last, stalled_seconds))
    loss = _loss(e, state)
    causes = {name: round(share, 4) for name, share in loss.shares.items() if share >= LEAST_SHARE}
    limited_by = _primary(loss.savings, before.limited_by if before else None)
    return Verdict(state, "inside" if e.inside else "outside", causes, limited_by, _undecidable(e, state))


def _undecidable(e: Evidence, state: str) -> frozenset[str]:
    """Return the causes that cannot be determined, because evidence for or against them is missing."""
    if not e.devices:
        return frozenset()
    measured = any(device.sm_active is not None for device in e.devices)
    waits_known = e.data_wait is not None or e.data_wait_exposed is not None
    watched = e.inside and state != "starting" and e.window >= MIN_EVIDENCE_SECONDS
    return (frozenset() if measured else _NEED_COUNTERS) | (_NEED_WAITS if watched and not waits_known else frozenset())


def _loss(e: Evidence, state: str) -> Loss:
    """Return the shares of the held GPU time that each cause cost; the unexplained part is "unknown"."""
    if state == "training_on_cpu":
        return _whole({_why_on_cpu(e): 1.0} if e.host_has_gpu else {})
    if state == "held_idle":
        return _whole({"unused_gpus": 1.0})
    held = e.judged_devices
    if state not in {"training", "unknown"} or not held:
        return Loss()
    unused = {"unused_gpus": e.unused_devices / held}
    if state == "unknown" or e.window < MIN_EVIDENCE_SECONDS:
        idle = sum(1.0 - device.busy for device in e.devices if device.busy is not None)
        # Counted, but not reported as the limit: without the hook, or with little evidence.
        return Loss(unused | {"unknown": idle / held})
    shares: defaultdict[str, float] = defaultdict(float, unused)
    savings = shares.copy()
    for loss in (of_device(e, device) for device in e.devices):
        for total, part in ((shares, loss.shares), (savings, loss.savings)):
            for name, share in part.items():
                total[name] += share / held
    return Loss(shares, savings)


def _whole(shares: Mapping[str, float]) -> Loss:
    return Loss(shares, shares)


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


def _primary(savings: Mapping[str, float], before: str | None) -> str | None:
    if savings.get("waiting_for_peers", 0.0) >= _MIN_PRIMARY_SHARE:
        return "waiting_for_peers"  # otherwise a faster rank would only wait longer
    first = max(savings, key=lambda name: savings[name], default="")
    held, most = (savings.get(name, 0.0) for name in (before or "", first))
    if held >= _MIN_PRIMARY_SHARE and most - held < _MIN_LEAD_SHARE:
        return before
    return first if most >= _MIN_PRIMARY_SHARE else None
