"""The problems of GPUs: errors, lowered clocks, allocated and not used, a low load without a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gpugauge.driver.advice import REMEMBERED, down_phrase
from gpugauge.driver.api import SUSPENDED
from gpugauge.faults.repair import SEE, Need, Site, User, heading, with_loss
from gpugauge.faults.table import FAULTS, order
from gpugauge.status.details import last_use
from gpugauge.status.history import WASTED_RATIO
from gpugauge.status.model import FaultStatus, GpuStatus, MigStatus, Problem, ProcessStatus, XidStatus
from gpugauge.status.owner import holders, manager, name, owner_words, who
from gpugauge.status.problem import problem
from gpugauge.status.use import gpus_words, in_use, mig_name, on_gpus
from gpugauge.status.words import HOOK_ADVICE, clock, percent, plural, since_words

_MAX_NAMED = 3  # programs that an error affects
_MAX_NAMED_UNHOOKED = 2  # programs without the hook
_MAX_ERRORS = 6  # besides the gravest
_DRIVER_DOWN = "driver_down"


def gpu_problems(gpus: Sequence[GpuStatus], site: Site | None) -> Iterator[Problem]:
    """Yield the problems of GPUs. The errors of one GPU are one problem, and so are GPUs of which nothing is known but
    that their driver is down. Commands are for the site; None if their processes are simulated.
    """
    hidden = [gpu for gpu in gpus if _is_hidden(gpu)]
    for reason in (_DRIVER_DOWN, REMEMBERED):
        if found := [gpu for gpu in hidden if gpu.down_reason == reason]:
            uuids, advice = tuple(gpu.uuid for gpu in found), found[0].advice
            advice = f"{advice}; and so for each of the others" if advice and len(found) > 1 else advice
            since = since_words(max((gpu.last_seen for gpu in found if gpu.last_seen), default=None))
            more: dict[str, Any] = {"gpus": uuids, "runbook": "GpuLost", "since_words": since}
            yield problem("gpu_down", gpus_words(found), down_phrase(reason), advice, **more)
    for gpu in gpus:
        subject, uuids = gpus_words([gpu]), (gpu.uuid,)
        errors = list(_errors(gpu, subject)) if gpu not in hidden else []
        yield from errors
        users = _users(gpu) or _allocated(gpu) if not errors else ""  # the users of a GPU are named once
        for fault in gpu.faults:
            if fault.kind in {"gpu_slowed", "narrow_link"}:
                since = since_words(fault.since, fault.earlier)
                more = {"detail": users or None, "runbook": fault.runbook, "since_words": since}
                yield problem(fault.kind, subject, fault.text, fault.advice, gpus=uuids, **more)
                users = ""
        devices: tuple[GpuStatus | MigStatus, ...] = (gpu, *gpu.mig)
        for device in devices:
            if gpu.up and device.allocated_to and not in_use(gpu):
                where = f"{subject}, MIG {mig_name(device)}" if isinstance(device, MigStatus) else subject
                text = f"{_allocated(device)}, but no process uses it"
                yield problem("unused", where, text, gpus=uuids)
    yield from _unjudged(gpus, site)


def repair(
    gpus: Sequence[GpuStatus],
    needs: Sequence[Need],
    site: Site,
    other: Sequence[ProcessStatus] = (),
    *,
    simulated: bool,
) -> Iterator[Problem]:
    """Yield how GPUs are repaired, if some need it. No command ends a `simulated` process; `other` are on no GPU."""
    there = {"": other}
    for gpu in gpus:
        there[gpu.uuid] = gpu.processes if gpu.up else [p for p in gpu.last_processes or () if p.alive]
    users = {
        uuid: [User(manager(p.workload), p.pid, owner_words(p.workload)) for p in found if not p.ended]
        for uuid, found in there.items()
    }
    if steps := tuple(site.plan(needs, users, simulated=simulated)):
        uuids = dict.fromkeys(need.device.uuid for need in needs)
        grave = any(fault.grave for gpu in gpus if gpu.uuid in uuids for fault in gpu.faults)
        yield problem("repair", heading(needs), "in this order", grave=grave, gpus=tuple(uuids), steps=steps)


def _is_hidden(gpu: GpuStatus) -> bool:
    """Return whether a GPU is down with its driver, and nothing else is known of it."""
    known = gpu.health or gpu.xids or last_use(gpu)
    return not gpu.up and gpu.down_reason in {_DRIVER_DOWN, REMEMBERED} and not known


def _errors(gpu: GpuStatus, subject: str) -> Iterator[Problem]:
    """Yield the gravest error of a GPU with its advice; the others are its evidence."""
    found = [fault for fault in gpu.faults if fault.kind == "gpu_health"]
    xids = [_xid(xid) for xid in reversed(gpu.xids)]
    found = sorted((*found, *(e for e in xids if e.advice)), key=lambda each: order(each.runbook or ""))
    if not gpu.up and gpu.down_reason != SUSPENDED:
        text = down_phrase(gpu.down_reason)
        found.insert(0, FaultStatus(True, text, gpu.advice, "GpuLost", kind="gpu_down", since=gpu.last_seen))
    if not found:
        return
    first = found[0]
    others = [*(e for e in found[1:] if e.kind != "xid"), *(e for e in xids if e is not first)]
    also = "; ".join(error.text for error in others[:_MAX_ERRORS])
    also += f" and {len(others) - _MAX_ERRORS} more" if len(others) > _MAX_ERRORS else ""
    users = (_users(gpu) if gpu.up else last_use(gpu)) or _allocated(gpu)
    detail = "; ".join(filter(None, (users, f"also: {also}" if also else "")))
    more = {"grave": first.grave, "detail": detail or None, "runbook": first.runbook, "gpus": (gpu.uuid,)}
    more |= {"since_words": since_words(first.since, first.earlier)}
    advice = with_loss("" if first.advice == SEE else first.advice or "", (error.advice for error in found))
    yield problem(first.kind or "", subject, first.text, advice or None, **more)


def _xid(xid: XidStatus) -> FaultStatus:
    grave = xid.runbook in FAULTS and FAULTS[xid.runbook].severity == "critical"
    text = f"{xid.text.replace(': ', ' (', 1)}{')' if ': ' in xid.text else ''} at {clock(xid.last)}"
    return FaultStatus(grave, text, xid.advice, xid.runbook, kind="xid")


def _users(gpu: GpuStatus) -> str:
    found = [process for process in on_gpus([gpu]) if process.role != "display"]
    named = list(map(who, found[:_MAX_NAMED]))
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"used by {', '.join(named)}{more}" if named else ""


def _allocated(device: GpuStatus | MigStatus) -> str:
    return f"allocated to {holders(device) or 'a workload'}" if device.allocated_to else ""


def _unjudged(gpus: Sequence[GpuStatus], site: Site | None) -> Iterator[Problem]:
    """Yield a problem for the GPUs with a low load that only programs without the hook use."""
    found = [gpu for gpu in gpus if gpu.up and _is_unjudged(gpu)]
    if found:
        # Rounded down, so that 50 % is never below 50 %.
        mean = int(100 * sum(gpu.load_5m or 0.0 for gpu in found) / len(found) + 1e-6)
        low = f"low is below {percent(WASTED_RATIO)}"
        text = f"busy {mean} % of the time, {low}; the cause is not known without the hook"
        most = max(len(_hidden(gpu)) for gpu in found)
        shared = f"check that {most} programs on one GPU are meant to share it; " if most > 1 else ""
        pids = [process.pid for process in _hidden(found[0]) if process.pid is not None]
        outside = f"what is seen from outside: {site.command(f'doctor {pids[0]}')}; " if site and pids else ""
        yield problem(
            "unjudged", gpus_words(found), text, shared + outside + HOOK_ADVICE, gpus=tuple(gpu.uuid for gpu in found)
        )


def programs_words(gpus: Sequence[GpuStatus]) -> str:
    """Return the programs without the hook on GPUs, as "train.py ×64 of user 1000, 8 on each GPU"."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    labels: dict[tuple[str, str], set[str]] = {}
    for gpu in gpus:
        for process in _hidden(gpu):
            key = name(process), owner_words(process.workload)
            counts.setdefault(key, Counter())[gpu.uuid] += 1
            labels.setdefault(key, set()).add(process.process)
    words = []
    for program, whose in sorted(labels, key=lambda key: (-len(labels[key]), key)):
        total, by_gpu = len(labels[program, whose]), counts[program, whose]
        each = min(by_gpu[gpu.uuid] for gpu in gpus)
        even = len(gpus) > 1 and each * len(gpus) == total == sum(by_gpu.values())
        times, of = f" ×{total}" if total > 1 else "", f" of {whose}" if whose else ""
        words.append(f"{program}{times}{of}" + (f", {each} on each GPU" if even else ""))
    return _some(words, "; ")


def processes_words(gpu: GpuStatus) -> str:
    """Return the processes without the hook on one GPU, as "8 processes of user 1000: train.py, without the hook"."""
    found = _hidden(gpu)
    owners = {owner_words(process.workload) for process in found}
    whose = f" of {len(owners)} owners" if len(owners) > 1 else "".join(f" of {words}" for words in owners if words)
    programs = Counter(map(name, found)).most_common()
    words = [f"{program} ×{count}" if len(programs) > 1 < count else program for program, count in programs]
    return f"{plural(len(found), 'process', 'es')}{whose}: {_some(words, ', ')}, without the hook"


def _some(words: Sequence[str], comma: str) -> str:
    more = len(words) - _MAX_NAMED_UNHOOKED
    return comma.join(words[:_MAX_NAMED_UNHOOKED]) + (f" and {plural(more, 'other program')}" if more > 0 else "")


def _is_unjudged(gpu: GpuStatus) -> bool:
    load, judged = gpu.load_5m, any(p.level != "none" or p.judging_since is not None for p in gpu.processes)
    return load is not None and load < WASTED_RATIO and not judged and bool(_hidden(gpu))


def _hidden(gpu: GpuStatus) -> list[ProcessStatus]:
    return [p for p in gpu.processes if p.role == "training" and p.state_words == "no hook"]
