"""The expected gain: by which factor the steps are faster without a cause, and the limit that comes next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpugauge.node.node import Diagnosis, Gain, Verdict
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.estimate import alternatives, estimate, variants
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.loaders import CROWDED
from gpugauge.verdict.possible import TOLERANCE
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS
from gpugauge.verdict.step import Step

LEAST = 1.05  # a smaller gain is noise
NARROW = 1.2  # upper bound by lower bound: up to which one number says it
MOST_SPREAD = 1.7  # upper bound by lower bound: with a larger spread the gain is undecidable
_KEPT_SPREAD = 2.2  # … of one that was decided: shares vary, and a gain that comes and goes is of no use
_MOST = 1000.0
_PRECISION = "precision_unused"
# Of a training on the CPU, which loses no GPU time.
_ON_CPU = ("data_loading", "waiting_for_peers", "cpu_limited", "memory_swap_io")


def gains(e: Evidence, verdict: Verdict, before: Mapping[str, Gain] = MappingProxyType({})) -> dict[str, Gain]:
    """Return the gain without each cause of a verdict, and on the CPU without what its steps wait for. Absent are gains
    that the evidence does not decide, and those that are as small as noise. `before` are those of the last verdict.
    """
    causes = _ON_CPU if verdict.state == "training_on_cpu" else tuple(verdict.causes)
    if causes is _ON_CPU and max(e.runnable or 0.0, e.loader_queued or 0.0) >= CROWDED:
        causes = tuple(cause for cause in causes if cause != "data_loading")  # its workers would wait for a CPU, too
    devices = () if verdict.state == "training_on_cpu" else e.devices
    trains = verdict.state == "training_on_cpu" or (verdict.state == "training" and devices)
    if not e.inside or not trains or e.window < MIN_EVIDENCE_SECONDS or not (e.steps or e.batches):
        return {}
    if any(device.busy is None for device in devices):
        return {}
    found = [_of_device(e, device, causes, before) for device in devices or (None,)]
    common = [cause for cause in found[0] if all(cause in one for one in found)]
    known, most = dict[str, Gain](), most_gain(verdict)
    for cause, new in ((cause, _least([one[cause] for one in found])) for cause in common):
        cut, last = _at_most(new, most), before.get(cause)
        spread = math.inf if cause == _PRECISION else _KEPT_SPREAD if last else MOST_SPREAD
        if last and cut.lower <= last.expected <= cut.upper:  # shares vary: bounds that change each minute are no use
            known[cause] = replace(last, next=new.next)
        elif new.lower > 1.0 and new.upper <= spread * new.lower and cut.expected >= LEAST:
            known[cause] = cut
    if _PRECISION in known:
        # What is lost counts a usual gain of the kernels: only the rates of the GPU bound it.
        peak = max(_at_peak(e, device) for device in devices)
        known[_PRECISION] = replace(known[_PRECISION], upper=max(peak, known[_PRECISION].upper))
    return {cause: replace(gain, lower=1.0) if CAUSES[cause].partly else gain for cause, gain in known.items()}


def most_gain(verdict: Verdict) -> float:
    """Return the factor of a program that loses no GPU time. A training on the CPU has none to lose: any factor."""
    kept = 1.0 - sum(verdict.causes.values()) - verdict.minor
    return _MOST if verdict.state == "training_on_cpu" else 1.0 / max(1.0 / _MOST, kept)


def of_loader(found: Diagnosis | None, verdict: Verdict) -> Diagnosis | None:
    """Return a diagnosis of the loader with the gain that the verdict allows: it knows neither the pauses between
    batches, nor what the GPU does meanwhile.
    """
    if found is None or found.speedup is None or found.lower is None:
        return found
    most = round(most_gain(verdict), 3)
    return found._replace(speedup=min(found.speedup, most), lower=min(found.lower, most))


def _at_most(gain: Gain, most: float) -> Gain:
    lower, expected = (min(value, round(most, 3)) for value in (gain.lower, gain.expected))
    # What is not lost was measured, too.
    return replace(gain, lower=lower, expected=expected, upper=min(gain.upper, round(most * (1.0 + TOLERANCE), 3)))


def _at_peak(e: Evidence, device: DeviceEvidence) -> float:
    """Return the gain of a lower precision if all kernels then reach the peak rate of the tensor cores."""
    step = estimate(e, device)
    saves = 1.0 - 1.0 / (device.tensor_speedup or 1.0)
    hidden = step.pinned and (step.kernels or 0.0) >= step.host + step.load  # no time of the host is known
    faster = step._replace(slower={**step.slower, _PRECISION: saves}, host=0.0 if hidden else step.host)
    return round(_ratio(faster, _PRECISION), 3)


def _least(of_devices: Sequence[Gain]) -> Gain:
    """Return the gain of a step on several GPUs, which the slowest of them limits."""
    least = min(of_devices, key=lambda gain: gain.expected)
    lower, upper = min(gain.lower for gain in of_devices), max(gain.upper for gain in of_devices)
    return Gain(least.expected, lower, upper, least.next)


def _of_device(
    e: Evidence, device: DeviceEvidence | None, causes: Sequence[str], before: Mapping[str, Gain]
) -> dict[str, Gain]:
    step = estimate(e, device)
    worth = [cause for cause in causes if _ratio(step, cause) >= LEAST]
    if not worth:
        return {}
    near, others = list(variants(e, device)), list(alternatives(step))
    return {cause: _gain(cause, step, near, others, before.get(cause)) for cause in worth}


def _gain(cause: str, step: Step, near: Sequence[Sequence[Step]], others: Sequence[Step], before: Gain | None) -> Gain:
    """Return the gain with its bounds: errors of measured values are independent of each other. What limits the step
    then is the same as before while a value within the bounds leads to it.
    """
    expected = _ratio(step, cause)
    below = above = 0.0
    for pair in near:
        errors = [math.log(_ratio(one, cause) / expected) for one in pair]
        below, above = below + min([0.0, *errors]) ** 2, above + max([0.0, *errors]) ** 2
    possible = [expected, *(_ratio(one, cause) for one in others)]
    lower = min(expected * math.exp(-math.sqrt(below)), *possible)
    upper = max(expected * math.exp(math.sqrt(above)), *possible)
    limit = step.without(cause).limit
    if before and limit != before.next:
        also = {one.without(cause).limit for one in (*(one for pair in near for one in pair), *others)}
        limit = before.next if before.next in also else limit
    return Gain(round(expected, 3), round(max(1.0, lower), 3), round(upper, 3), limit)


def _ratio(step: Step, cause: str) -> float:
    return max(1.0, min(_MOST, step.time / max(step.without(cause).time, step.time / _MOST))) if step.time else 1.0
