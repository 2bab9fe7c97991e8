"""A process that replaces its program (exec) keeps its pid and its `process` label, and begins another session.

Its counters go on: the counts of the sessions before are added to those of the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any, TypeVar

from gpugauge.node import training
from gpugauge.sessions.session import Session, ThreadTime
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord

Number = TypeVar("Number", int, float)

_MAX_DEVICES = 64  # of one process; each of its programs may report others
_EARLIER = -1  # the index of a device that only a program before has seen
_DEVICE_COUNTS = ("retries", "ooms", "device_allocs", "device_frees")
_SNAP_COUNTS = ("errors", "exposed_wait_seconds", "local_work_seconds", "compilations", "samples", "tokens")

_LOADER_GAUGES = ("slowest", "worker_bytes")
_LOADER_COUNTS = tuple(f.name for f in fields(wire.Loader) if f.name not in _LOADER_GAUGES)


def continued(before: Session, session: Session) -> Session:
    """Return the session with the counts of the one `before` added; its gauges and facts are its own."""
    started = before.hello.started if before.hello.started is not None else session.hello.started
    return session._replace(
        hello=replace(session.hello, started=started),
        snap=_snap(_newest(before), _newest(session)),
        record=_record(before, session.record),
        thread={**before.thread, **{p: before.thread.get(p, ThreadTime()).plus(t) for p, t in session.thread.items()}},
    )


def _newest(session: Session) -> wire.Snap | None:
    """Return the last message with the counts of the shared record, which are newer: no count falls at a new program,
    whose record or first message is missing.
    """
    snap = session.snap
    if snap is None:
        return None
    steps, waits = training.all_steps(session), training.waits(session)
    return replace(
        snap,
        steps=steps and replace(steps, count=training.steps(session) or 0, last=training.last_step(session)),
        batches=snap.batches and replace(snap.batches, count=training.batches(session) or 0),
        samples=training.samples(session),
        tokens=training.tokens(session),
        waits=waits if waits or snap.waits is not None else None,
    )


def _snap(before: wire.Snap | None, snap: wire.Snap | None) -> wire.Snap | None:
    if before is None:
        return snap
    if snap is None:  # nothing is reported yet
        own: dict[str, Any] = {"parameters": (), "optimizer_state": (), "facts": {}, "groups": (), "answers": None}
        return replace(before, devices=_devices(before.devices, ()), loader=_loader(before.loader, None), **own)
    counts: dict[str, Any] = {name: _sum(getattr(before, name), getattr(snap, name)) for name in _SNAP_COUNTS}
    counts |= {name: _sums(getattr(before, name), getattr(snap, name)) for name in ("waits", "flops")}
    return replace(
        snap,
        steps=_progress(before.steps, snap.steps),
        batches=_progress(before.batches, snap.batches),
        step_source=snap.step_source or before.step_source,
        devices=_devices(before.devices, snap.devices),
        loader=_loader(before.loader, snap.loader),
        **counts,
    )


def _record(before: Session, record: SharedRecord | None) -> SharedRecord | None:
    """Return a record with the counts of the program before it, which may have had none."""
    if record is None:
        return None
    return replace(
        record,
        steps=record.steps + (training.steps(before) or 0),
        batches=record.batches + (training.batches(before) or 0),
        seconds=_sums(training.phases(before), record.seconds) or {},
        samples=record.samples + (training.samples(before) or 0),
        tokens=record.tokens + (training.tokens(before) or 0),
        waits=_sums(training.waits(before), record.waits) or {},
        last_step=record.last_step or training.last_step(before),
    )


def _progress(before: wire.Progress | None, progress: wire.Progress | None) -> wire.Progress | None:
    if before is None or progress is None:
        return progress if before is None else before
    log2 = [a + b for a, b in zip(_filled(before.log2), _filled(progress.log2), strict=True)]
    last = progress.last if progress.last is not None else before.last
    return wire.Progress(before.count + progress.count, before.seconds + progress.seconds, last, tuple(log2))


def _filled(log2: tuple[int, ...]) -> tuple[int, ...]:
    return log2 + (0,) * (wire.LOG2_BUCKETS - len(log2))


def _devices(before: tuple[wire.Device, ...], devices: tuple[wire.Device, ...]) -> tuple[wire.Device, ...]:
    earlier = {device.uuid: device for device in before if device.uuid is not None}
    present = {device.uuid for device in devices}
    added = [_device(earlier[device.uuid], device) if device.uuid in earlier else device for device in devices]
    others = islice((uuid for uuid in earlier if uuid not in present), max(0, _MAX_DEVICES - len(added)))
    return (*added, *(_device(earlier[uuid], wire.Device(_EARLIER, uuid)) for uuid in others))


def _device(before: wire.Device, device: wire.Device) -> wire.Device:
    counts: dict[str, Any] = {name: _sum(getattr(before, name), getattr(device, name)) for name in _DEVICE_COUNTS}
    return replace(device, **counts)


def _loader(before: wire.Loader | None, loader: wire.Loader | None) -> wire.Loader | None:
    if before is None:
        return loader
    if loader is None:
        gauges: dict[str, Any] = dict.fromkeys(_LOADER_GAUGES)
        return replace(before, **gauges)
    counts: dict[str, Any] = {name: _sum(getattr(before, name), getattr(loader, name)) for name in _LOADER_COUNTS}
    return replace(loader, **counts)


def _sum(before: Number | None, now: Number | None) -> Number | None:
    return now if before is None else before if now is None else before + now


def _sums(before: Mapping[str, float] | None, now: Mapping[str, float] | None) -> dict[str, float] | None:
    if before is None and now is None:
        return None
    before, now = before or {}, now or {}
    return {key: before.get(key, 0.0) + now.get(key, 0.0) for key in {**before, **now}}
