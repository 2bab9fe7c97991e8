"""Values of a training that several read: metric rows, the verdict, the status. None where they are not known."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.base.text import whole
from gpugauge.metric import HistogramValue
from gpugauge.sessions.inquiry import WAITING
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire

# Exponents of the histogram's bounds, a part of the hook's powers of two: 1 ms to 2 minutes.
_FIRST_POWER, _LAST_POWER = -10, 7
LOADER_FACTS = ("loader_workers", "loader_batch_size", "loader_pin_memory", "loader_prefetch")
STEP_BUCKETS = tuple(2.0**power for power in range(_FIRST_POWER, _LAST_POWER + 1))


def steps(session: Session) -> int | None:
    """Return the steps of the last message, or of the shared record, which is newer."""
    sent = session.snap.steps if session.snap else None
    return _newer(sent.count if sent else None, session.record.steps if session.record else 0)


def batches(session: Session) -> int | None:
    """Return the batches of the last message, or of the shared record, which is newer."""
    sent = session.snap.batches if session.snap else None
    return _newer(sent.count if sent else None, session.record.batches if session.record else 0)


def samples(session: Session) -> int | None:
    """Return the samples of the last message, or of the shared record, which is newer."""
    return _newer(session.snap.samples if session.snap else None, session.record.samples if session.record else 0)


def tokens(session: Session) -> int | None:
    """Return the tokens of the last message, or of the shared record, which is newer."""
    return _newer(session.snap.tokens if session.snap else None, session.record.tokens if session.record else 0)


def _newer(sent: int | None, recorded: int) -> int | None:
    return None if sent is None else max(sent, recorded)


def distribution(session: Session) -> wire.Progress:
    """Return the steps of the last message, none without one."""
    return (session.snap.steps if session.snap else None) or wire.Progress()


def measured_steps(session: Session) -> tuple[int, float] | None:
    """Return the steps whose duration is known, and their seconds; None without one."""
    sent = session.snap.steps if session.snap else None
    return (sum(sent.log2), sent.seconds) if sent and any(sent.log2) else None


def loader_options(session: Session) -> dict[str, str]:
    """Return the options of the data loader, without those that are not known; {} after the end."""
    facts = session.facts if session.connected else {}
    return {name.removeprefix("loader_"): facts[name] for name in LOADER_FACTS if facts.get(name)}


def groups(session: Session) -> dict[tuple[str, str, str], wire.Group]:
    """Return the process groups of a rank by name, description and size, as of its last message or answer."""
    sent, inquiry = session.snap.groups if session.snap else (), session.inquiry
    names = {group.name for group in sent}
    latest = inquiry.answer.groups if inquiry and inquiry.answer else ()
    found = {group.name: group for group in (*sent, *latest) if group.name in names}  # the budget counts these
    return {(group.name, group.kind, str(group.size)): group for group in found.values()}


def in_flight(session: Session) -> dict[tuple[str, str, str], float]:
    """Return the seconds for which a collective of a group has not completed, at the last answer of the process."""
    inquiry = session.inquiry
    if inquiry is None or inquiry.answered is None or inquiry.position != WAITING:
        return {}
    known = {key: inquiry.in_flight.get(key[0]) for key in groups(session)}
    return {key: inquiry.answered - since for key, since in known.items() if since is not None}


def position(session: Session) -> tuple[str, str] | None:
    """Return where a rank is that makes no progress: its position, and the function in which it waits."""
    inquiry = session.inquiry if session.connected else None
    if inquiry is None or inquiry.position is None:
        return None
    waits_in = inquiry.answer.waits_in if inquiry.answer and inquiry.position == WAITING else None
    return inquiry.position, waits_in or ""


def open_wait(session: Session) -> float:
    """Return the seconds for which a rank has waited in the collective in which it is; 0 if it is in none."""
    inquiry = session.inquiry
    return inquiry.answered - inquiry.waiting if inquiry and inquiry.answered and inquiry.waiting else 0.0


def run(session: Session) -> tuple[str, ...] | None:
    """Return what the ranks of a distributed training have in common, None for a process of its own."""
    world = session.facts.get("world_size", "")
    return (*session.owner, str(session.peer_uid), world) if world not in {"", "1"} else None


def phase(session: Session) -> str | None:
    """Return the present phase, None after the end."""
    return session.record.phase if session.record and session.connected else None


def last_step(session: Session) -> float | None:
    """Return the Unix time of the last optimizer step."""
    sent = session.snap.steps if session.snap else None
    if sent is None or session.record is None or session.record.last_step is None:
        return sent.last if sent else None
    return session.record.last_step


def step_seconds(session: Session) -> float | None:
    """Return the duration of all steps."""
    return session.snap.steps.seconds if session.snap and session.snap.steps else None


def step_durations(session: Session) -> HistogramValue | None:
    """Return the distribution of the durations of the steps, by STEP_BUCKETS."""
    sent = all_steps(session)
    if sent is None:
        return None
    first = _FIRST_POWER - wire.LOG2_FIRST
    counts = [sum(sent.log2[: first + 1])]
    for count in sent.log2[first + 1 : first + len(STEP_BUCKETS)]:
        counts.append(counts[-1] + count)
    counts += [counts[-1]] * (len(STEP_BUCKETS) - len(counts))
    return HistogramValue((*counts, sum(sent.log2)), sent.seconds, sent.log2, wire.LOG2_FIRST)


def all_steps(session: Session) -> wire.Progress | None:
    """Return the steps of the last message, and after the end those that only the shared record has."""
    sent, record = session.snap.steps if session.snap else None, session.record
    if session.connected or sent is None or sent.last is None or record is None or record.last_step is None:
        return sent
    more, seconds = record.steps - sent.count, max(0.0, record.last_step - sent.last)
    if more <= 0:
        return sent
    log2 = [*sent.log2, *(0,) * (wire.LOG2_BUCKETS - len(sent.log2))]
    log2[wire.log2_bucket(round(seconds / more * 1e9))] += more
    return wire.Progress(record.steps, sent.seconds + seconds, record.last_step, tuple(log2))


def local_work(session: Session) -> float | None:
    """Return the seconds of the steps without the waits for other ranks."""
    return session.snap.local_work_seconds if session.snap else None


def phases(session: Session) -> dict[str, float]:
    """Return the seconds in each phase since the session began, {} without a shared record."""
    return dict(session.record.seconds) if session.record else {}


def asleep(session: Session, phase: str = "training") -> float | None:
    """Return the seconds for which the training thread was asleep in a phase, None if that is not known."""
    return session.thread[phase].asleep if phase in session.thread else None


def waits(session: Session) -> dict[str, float]:
    """Return the waits for batches in seconds by phase, {} if unknown; hooks before 1.2 send no phases."""
    snap, recorded = session.snap, session.record.waits if session.record else {}
    if snap is not None and not recorded and snap.waits is None and snap.batches and snap.batches.count:
        return {"training": snap.batches.seconds}
    sent = (snap.waits if snap else None) or {}
    return {phase: max(sent.get(phase, 0.0), recorded.get(phase, 0.0)) for phase in {**sent, **recorded}}


def exposed_wait(session: Session) -> float | None:
    """Return the seconds of the waits for batches in which the device was idle."""
    return session.snap.exposed_wait_seconds if session.snap else None


def flops(session: Session) -> dict[str, float]:
    """Return the floating-point operations of the model by their source."""
    return dict(session.snap.flops or {}) if session.snap else {}


def visible(session: Session) -> list[wire.Device]:
    """Return the devices that the program sees now, those whose uuid is known: not those of a program before it."""
    devices = session.snap.devices if session.snap else ()
    return [device for device in devices if device.uuid is not None and device.index >= 0]


def by_uuid(session: Session, figure: Callable[[wire.Device], int | None]) -> dict[str, int]:
    """Return one figure of every device whose uuid is known."""
    devices = session.snap.devices if session.snap else ()
    return {d.uuid: value for d in devices if d.uuid is not None and (value := figure(d)) is not None}


def parameter_bytes(session: Session) -> dict[str, int]:
    """Return the memory of the optimizers' parameters, by device as torch names it."""
    result: dict[str, int] = {}
    for entry in session.snap.parameters if session.snap else ():
        result[entry.device] = result.get(entry.device, 0) + entry.bytes
    return result


def loader(session: Session) -> wire.Loader | None:
    """Return how the batches of the training are loaded."""
    return session.snap.loader if session.snap else None


def slowest_worker(session: Session) -> float | None:
    """Return the speed of the slowest loader worker as a share of the median of the others, at most 1."""
    found = loader(session)
    return None if found is None or found.slowest is None else min(1.0, found.slowest)


def cpus(session: Session) -> float | None:
    """Return the CPUs of a process: ranks of one host share them, unless they are bound to some."""
    own, ranks = (whole(session.facts.get(name)) or 0 for name in ("cpus", "ranks_on_cpus"))
    return own / ranks if own and ranks else None
