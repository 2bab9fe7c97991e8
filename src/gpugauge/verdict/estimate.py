"""The step of a training, estimated from its evidence."""

from __future__ import annotations

from collections.abc import Iterator

from gpugauge.verdict import savings
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.possible import OF_DEVICE, OF_PROCESS, TOLERANCE, near, near_device
from gpugauge.verdict.step import Step

# Bounds of an allocation or a free by the driver, in seconds (savings.py names the measurements), and their mean.
_CALL_BOUNDS = (0.0002, 0.001)
_CALL_SECONDS = 0.00045
# Waits that remain with any loader, at most: for a batch that is ready, as it is read from a queue, and for the first
# batch of the program.
_READY_SECONDS, _FIRST_SECONDS = 0.002, 0.7

# Ratios from 0 to 1.
_TOLERANCE_ON_CPU = 0.06  # where all shares are measured by clocks, in the process and by its cgroup
_SLOWER_RANKS = 0.12  # wait for peers from which on the other ranks are slower; a shorter one is jitter of equal ranks
_BUSY = 0.12  # idle time up to which the kernels take all of the step
_MOST = 0.99  # of the time of host and loader that can be withheld
_LEAST_ACTIVE = 0.05  # of the window, outside of pauses
# CPU time that work takes less without a quota, at most: its share of the time withheld, squared, by this factor. With
# 12 % of a CPU, in bursts with cold caches, programs took up to 1.4 times the CPU time.
_COLD = 0.5
# A host that launches ahead of the GPU, or workers for which nobody waits, show no duration. Assumed, as a share of
# the time behind which they are hidden, and at most. The first is less than what a lower precision leaves of the
# kernels: an assumed host is not named as the next limit.
_HIDDEN, _HIDDEN_MOST, _HIDDEN_LOADER = 0.39, 0.75, 0.6


def estimate(e: Evidence, device: DeviceEvidence | None, call: float = _CALL_SECONDS) -> Step:
    """Return the step of a training on one of its GPUs, or on the CPU. A call of the allocator to the driver is assumed
    to take `call` seconds.
    """
    paused = e.paused / max(_LEAST_ACTIVE, 1.0 - e.paused)  # by the time of the training
    if device is None:
        waits = max(0.0, 1.0 - e.local_work) if e.local_work is not None and (e.world_size or 1) > 1 else 0.0
        return _on_cpu(e, paused, min(1.0, waits))
    busy, own, shared = device.busy or 0.0, savings.own_busy(device), savings.others_busy(device)
    spin = savings.waiting_for_peers(e, device, own)
    local = max(0.0, 1.0 - spin)
    kernels = min(local, (own - spin) / (1.0 - shared))
    allocator = min(local - kernels, _calls(e) * call / e.window if e.window else 0.0)
    idle = 1.0 - busy - allocator
    limited = savings.loader_limits(e, local - kernels)
    wait = min(local, e.data_wait or 0.0)
    thread = (local - wait if limited else local) - allocator
    pinned = e.pinned is not False
    copy = device.transfer or 0.0
    load = min(wait, thread) if e.loader_workers == 0 else 0.0
    taken = max(share(e) or 0.0 for share in savings.ROOTS.values())
    if not pinned:
        copy = min(copy, max(0.0, thread - load - kernels))
        host = thread - load - kernels - copy
    elif idle <= _BUSY and not limited:
        kernels = thread
        host = max(_HIDDEN * kernels - load, taken - load)
    else:
        host = thread - load
    host = max(0.0, host)
    asleep = min(host, savings.elsewhere(e, 1.0 - kernels)) if idle > _BUSY else 0.0
    host -= asleep
    loader = local if limited else min(local, e.loading or 0.0)
    working = max(host + asleep + load, loader)
    if taken > working and e.loader_workers:
        # Time is withheld only from what works: the workers, for which nobody waits.
        working = loader = (taken + local) / 2
    return Step(
        kernels,
        host,
        asleep,
        load,
        loader,
        copy,
        pinned,
        allocator=allocator,
        peers=1.0 if spin >= _SLOWER_RANKS else 0.0,
        why_it_waits=savings.why_it_waits(e),
        paused=paused,
        slower=savings.slow_kernels(e, device, own - spin, shared),
        withheld=_withheld(e, working),
    )


def _on_cpu(e: Evidence, paused: float, waits: float) -> Step:
    local = 1.0 - waits
    wait = min(local, e.data_wait or 0.0)
    return Step(
        None,
        local - wait,
        load=0.0 if e.loader_workers else wait,
        loader=local if e.loader_workers and wait else 0.0,
        peers=1.0 if waits >= _SLOWER_RANKS else 0.0,
        paused=paused,
        withheld=_withheld(e, local),
    )


def _calls(e: Evidence) -> float:
    """Return the calls of the allocator to the driver in the window, 0 if it only grew."""
    pressed = max(e.retries, e.ooms) or (e.device_frees or 0.0)
    return (e.device_allocs or 0.0) + (e.device_frees or 0.0) if pressed else 0.0


def _withheld(e: Evidence, working: float) -> dict[str, float]:
    return {name: min(_MOST, (share(e) or 0.0) / working) if working else 0.0 for name, share in savings.ROOTS.items()}


def variants(e: Evidence, device: DeviceEvidence | None) -> Iterator[tuple[Step, ...]]:
    """Yield for each measured value the steps with a lower and a higher one."""
    for name in OF_PROCESS:
        found = near(e, name, tolerance=TOLERANCE if device else _TOLERANCE_ON_CPU)
        yield tuple(estimate(changed, device) for changed in found)
    if device is not None:
        for names in OF_DEVICE:
            yield tuple(estimate(e, changed) for changed in near_device(e, device, *names))
    if device is None and e.data_wait and e.batches and e.window:
        ready = min(e.data_wait, (_FIRST_SECONDS + e.batches * _READY_SECONDS) / e.window)
        yield (estimate(e._replace(data_wait=e.data_wait - ready), device),)
    if e.cpu_throttled and (e.runnable or 0.0) > e.cpu_throttled:
        # Linux 6.18 counts a half or less of the time in which a thread is throttled. Of its waits for a CPU, the rest
        # can also be due to other programs.
        yield (estimate(e._replace(cpu_throttled=e.runnable), device),)
    if e.cpu_throttled and device is None:
        worked = (1.0 - e.cpu_throttled) * (1.0 - _COLD * e.cpu_throttled**2)
        yield (estimate(e._replace(cpu_throttled=1.0 - worked), device),)
    if _calls(e):
        yield tuple(estimate(e, device, call) for call in _CALL_BOUNDS)


def alternatives(step: Step) -> Iterator[Step]:
    """Yield other steps that the same evidence allows."""
    if "precision_unused" in step.slower:
        yield step._replace(slower={**step.slower, "precision_unused": savings.PRECISION_SAVES_LEAST})
    if step.kernels is not None and not step.loader and not step.load:
        yield step._replace(loader=_HIDDEN_LOADER * step.without("waiting_for_peers").time)
    if not step.pinned:
        yield step._replace(serial=True)
    elif step.kernels and step.kernels > step.host + step.load:
        yield step._replace(host=max(step.host, _HIDDEN_MOST * (step.kernels - step.load)))
