"""The diagnosis of a loader: the limit of its batches, and the number of workers that would remove the waits."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpugauge.node.node import Diagnosis

TOO_FEW_WORKERS, TRAINING_THREAD, STORAGE = "too_few_workers", "training_thread", "storage"
TOO_FEW_CPUS, BUSY_CPUS, MEMORY, DELIVERY = "too_few_cpus", "busy_cpus", "memory", "delivery"
SLOW_WORKER, WORKER_START, SLOW_BATCHES = "slow_worker", "worker_start", "slow_batches"

# Each worker is a process with torch in its memory, and a host with hundreds of them fails. torch itself warns of more
# workers than CPUs. Workers that mostly wait for storage hardly use their CPU, so two share one, and a few need none.
_MOST_PER_CPU, _ALWAYS_FINE, _MOST = 2, 16, 64

# By reason, the evidence for it.
REASONS = {
    TOO_FEW_WORKERS: "the loader workers are busy all the time, and the CPUs allow more of them",
    TRAINING_THREAD: "the training thread loads the batches itself: num_workers is 0, or the loader is not torch's",
    STORAGE: "as the two above, and most of the time of a batch is a wait for storage. Whether the storage serves more "
    "reads at once cannot be seen in one run: the lower bound of the gain is that it does not",
    TOO_FEW_CPUS: "training and loader use up the CPUs of the process, or the quota of its cgroup: more workers will "
    "not help",
    BUSY_CPUS: "the loader workers or the training thread wait for CPUs, so that more workers would wait, too, and the "
    "training does not use up its own: other processes do",
    MEMORY: "the memory of the machine or of the cgroup has no space for another worker",
    DELIVERY: "the loader workers are idle while the training waits, so more of them will not help: batches of uneven "
    "duration, a small prefetch_factor, epochs of few batches, or a slow transfer to the training process",
    SLOW_WORKER: "one loader worker needs at least half as long again for a batch as the others, which wait for it",
    SLOW_BATCHES: "a batch takes so long to load that more workers would be needed than a host should run: "
    f"{_MOST_PER_CPU} for each CPU of the process, but {_ALWAYS_FINE} are always allowed, and {_MOST} are the most",
    WORKER_START: "the loader workers are started in each epoch, which takes longer than all other waits for batches",
}
# By reason, the change: where another number of workers changes nothing, and what follows the number.
CHANGES = {
    TOO_FEW_CPUS: "more CPUs, or cheaper decoding and collate: the CPUs of the process are in use, and more loader "
    "workers will not help",
    BUSY_CPUS: "more CPUs for it, or fewer programs beside it: it waits for a CPU",
    MEMORY: "more loader workers will not help, the memory is too small for them: give the job more memory, "
    "or keep less of the dataset in each worker",
    DELIVERY: "more loader workers will not help, the present ones are idle: raise prefetch_factor, return "
    "tensors and not lists or objects, make all batches equally large, and avoid very short epochs",
    SLOW_WORKER: "one loader worker is slower than the others and delays each round: check its part of the "
    "dataset, and the CPU it runs on",
    WORKER_START: "persistent_workers=True in DataLoader: its workers are started in each epoch",
}
FOR_CPUS = frozenset({TOO_FEW_CPUS, BUSY_CPUS})
"""The reasons for which another number of workers gains nothing."""
MORE = {
    SLOW_BATCHES: "; more would be too many for this machine, so make the dataset faster, too",
    STORAGE: ", if the storage serves several reads at once; otherwise faster storage",
}

LEAST = 0.05  # share of the time of a batch; shorter waits limit nothing
CROWDED = 0.2  # share of the time in which training or loader wait for a CPU, from which on more workers would, too
_LEAST_GAIN = 1.1  # less is noise of the measured durations
_SLOW = 0.67  # speed of the slowest worker
_BUSY = 0.75  # share of their time in which workers are busy if they limit the training
_THROTTLED = 0.05
_STILL_CROWDED = 0.15
_HANDOVER = 0.0005  # CPU seconds for which the training thread receives a batch from a loader worker, as measured
_MARGIN = 1.1  # durations vary, and a worker that is always busy delivers late
_EXACT = 8  # larger numbers are even: nobody can measure the difference
_SPARE = 1.5  # a number that was recommended before is kept while it is at most so many times what is needed


class Load(NamedTuple):
    """The loading of one training. Times are in seconds of a batch, `workers` 0 for the training thread."""

    workers: int
    own: float  # work of the training without waits for batches
    wait: float  # for batches, without `start`
    start: float  # waits for the start and end of workers
    cpu: float  # loading thread
    threads: float = 0.0  # CPU time of its other threads
    storage: float = 0.0
    blocked: float = 0.0
    queued: float = 0.0  # wait of the loading thread for a CPU
    delayed: float = 0.0  # wait of the training thread for a CPU, outside of loading
    trainer_cpu: float = 0.0  # CPU time of the training process for its own work
    cpus: float | None = None
    throttled: float = 0.0  # share of time in which the cgroup was throttled
    space: int | None = None  # for this many more workers the memory is enough
    slowest: float | None = None  # speed of the slowest worker as a share of the others
    known: bool = True  # whether the loader is torch's: others may have workers of their own

    @property
    def busy(self) -> float:
        """Time of a batch for a loading thread that gets a CPU at once."""
        return self.cpu + self.storage + self.blocked

    @property
    def time(self) -> float:
        """Time of a batch in the training."""
        return self.own + self.wait + self.start

    @property
    def period(self) -> float:
        """Time of a batch in the training with the waits of its thread for a CPU."""
        return self.time + self.delayed + (0.0 if self.workers else self.queued)

    @property
    def crowded(self) -> float:
        """Share of the time in which the training thread or a loading thread waits for a CPU, the larger one."""
        of_worker = self.queued / (self.busy + self.queued) if self.workers else 0.0
        return max(1.0 - self.time / self.period, of_worker)


def most_workers(cpus: float | None) -> int:
    """Return the largest number of loader workers that is recommended to a process with so many CPUs."""
    return _MOST if cpus is None else min(_MOST, max(_ALWAYS_FINE, int(_MOST_PER_CPU * cpus)))


def diagnose(load: Load, before: Diagnosis | None = None) -> Diagnosis | None:
    """Return the diagnosis; None if the training does not wait for its loader, and where the evidence is not enough.
    `before` is the last diagnosis of the same training: its number is kept while it is still good.
    """
    if min(load.time, load.busy, load.own) <= 0 or max(load.wait, load.start) < LEAST * load.time:
        return None
    if load.start > load.wait:
        gain = load.time / (load.time - load.start)
        return Diagnosis(WORKER_START, load.workers, round(gain, 3), round(gain, 3))
    if load.slowest is not None and load.slowest < _SLOW:
        return Diagnosis(SLOW_WORKER)
    kept = before.workers or 0 if before else 0
    found = _in_thread(load, kept) if load.workers == 0 else _in_workers(load, kept)
    least = _STILL_CROWDED if before and before.reason == BUSY_CPUS else CROWDED
    more = found is None or (found.speedup or 0.0) > 1.0
    if load.crowded < least or load.cpu <= load.storage + load.blocked or not more or (load.workers and not found):
        return found
    # More workers would wait for a CPU, too.
    used = load.trainer_cpu + load.cpu + load.threads
    own = load.throttled >= _THROTTLED or (load.cpus and used >= _BUSY * load.cpus * load.period)
    return Diagnosis(TOO_FEW_CPUS, load.workers, 1.0, 1.0) if own else Diagnosis(BUSY_CPUS)


def _in_thread(load: Load, kept: int) -> Diagnosis | None:
    waits = load.storage + load.blocked
    if not load.known and load.blocked > load.busy / 2:
        return None  # it may wait for workers of its own
    if load.busy < _BUSY * load.wait:
        return None  # one batch hangs, or is far slower than the others: workers would wait for it, too
    if load.throttled >= _THROTTLED and load.cpu > waits:
        return Diagnosis(TOO_FEW_CPUS, 0, 1.0, 1.0)
    if _gain(load, load.own + _HANDOVER, _MOST) < _LEAST_GAIN:
        return None
    best = _least_time(load)
    workers, best = _needed(load, best, kept), max(best, load.own + _HANDOVER)
    workers, limit, best = _allowed(load, workers, best)
    if not workers:
        return Diagnosis(limit, 0, 1.0, 1.0)
    gain = _gain(load, best, workers)
    if gain < _LEAST_GAIN:
        return Diagnosis(TOO_FEW_CPUS, 0, 1.0, 1.0)
    # One worker loads the next batch while the training works on this one, whatever it waits for.
    lower = min(gain, _gain(load, max(best, load.busy), workers)) if waits > load.busy / 2 else gain
    return Diagnosis(_reason(load, limit, TRAINING_THREAD), workers, gain, max(1.0, lower))


def _in_workers(load: Load, kept: int) -> Diagnosis | None:
    present, waits = load.workers, load.storage + load.blocked
    unchanged = (present, 1.0, 1.0)
    # With the present workers, and with any number, if no other process used the CPUs.
    now, best = max(load.own, load.busy / present), _least_time(load)
    if load.throttled >= _THROTTLED and load.cpu > waits / 2:
        return Diagnosis(TOO_FEW_CPUS, *unchanged)
    if load.busy + load.queued < _BUSY * present * (load.own + load.wait):
        return _idle(load, best)
    if best > load.own * _LEAST_GAIN and now < best * _LEAST_GAIN:
        return Diagnosis(TOO_FEW_CPUS, *unchanged)
    workers = _needed(load, best, kept if kept > present else 0)
    if workers <= present:
        # Enough, if they get a CPU; if they do, their durations are not steady.
        if load.queued / present <= load.wait / 2:
            return None
        return Diagnosis(BUSY_CPUS) if best <= load.own else Diagnosis(TOO_FEW_CPUS, *unchanged)
    workers, limit, best = _allowed(load, workers, best)
    if workers == present:
        return Diagnosis(limit, *unchanged)
    gain = _gain(load, best, workers)
    if gain < _LEAST_GAIN:
        return None
    one = max(load.storage, load.blocked) > load.busy / 2  # whether it serves several workers is not known
    return Diagnosis(_reason(load, limit, TOO_FEW_WORKERS), workers, gain, 1.0 if one else gain)


def _allowed(load: Load, workers: int, best: float) -> tuple[int, str, float]:
    """Return the workers that the host can run, the present or more, what limits them or "", and the step with them."""
    most, limit = most_workers(load.cpus), SLOW_BATCHES
    if most < _LEAST_GAIN * load.workers:
        most = load.workers  # one or two more change nothing
    if load.space is not None and load.workers + load.space < most:
        most = max(load.workers + min(load.space, 1), _coarse(load.workers + load.space, down=True))
        limit = MEMORY
    return (most, limit, max(best, load.busy / max(1, most))) if workers > most else (workers, "", best)


def _reason(load: Load, limit: str, otherwise: str) -> str:
    """Return the reason of a diagnosis that recommends more workers."""
    return limit if limit == SLOW_BATCHES else STORAGE if load.storage > load.busy / 2 else otherwise


def _idle(load: Load, best: float) -> Diagnosis | None:
    """Return the diagnosis of workers that are idle while the training waits."""
    if load.delayed >= LEAST * load.time and best <= load.own * _LEAST_GAIN:
        return Diagnosis(BUSY_CPUS)  # a worker that has to begin a batch gets a CPU late, too
    # One slow worker, for which the others wait, looks the same until the workers can be compared.
    return Diagnosis(DELIVERY, load.workers, 1.0, 1.0) if load.workers == 1 or load.slowest is not None else None


def _least_time(load: Load) -> float:
    """Return the time of a batch with any number of workers: the training's own, or that of all CPUs together."""
    return max(load.own, (load.trainer_cpu + load.cpu + load.threads) / load.cpus) if load.cpus else load.own


def _needed(load: Load, best: float, kept: int) -> int:
    """Return the number of workers that removes the waits, and `kept` where it removes them, too."""
    # Where the CPUs are the limit, a worker more than necessary only takes time from the others.
    margin = _MARGIN if best <= load.own else 1.0
    least = load.busy / best
    if least <= kept <= _SPARE * margin * least + 1.0:
        return kept
    return _coarse(max(1, math.ceil(least * margin - 1e-6)))


def _coarse(number: int, *, down: bool = False) -> int:
    odd = number % 2 if number > _EXACT else 0
    return number - odd if down else number + odd


def _gain(load: Load, best: float, workers: int) -> float:
    """Return the factor of the step rate with a step of `best` seconds. So many workers beside the training thread, in
    place of it or of the present ones, load no more batches at once.
    """
    # Other workers wait for a CPU as the present ones do, and the training thread still does.
    time = load.time
    if load.workers:
        time = max(time - load.queued / load.workers, load.start + max(load.own, load.busy / load.workers))
    most = workers / load.workers if load.workers else workers + 1.0
    return round(max(1.0, min(most, (time + load.delayed) / (best + load.start + load.delayed))), 3)


def as_markdown() -> str:
    """Return the table of docs/verdict.md."""
    lines = ["| reason | evidence |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{reason}` | {evidence} |" for reason, evidence in REASONS.items())])
