"""A process that replaces its program (exec) keeps its pid and its `process` label, and begins another session.

Its counters go on: the counts of the sessions before are added to those of the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any, TypeVar

from gpugauge.sessions.session import Session, ThreadTime
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord

Number = TypeVar("Number", int, float)

_MAX_DEVICES = 64  # of one process; each of its programs may report others
_DEVICE_COUNTS = ("retries", "ooms", "device_allocs", "device_frees")
_SNAP_COUNTS = ("errors", "exposed_wait_seconds", "local_work_seconds", "compilations", "samples", "tokens")

_LOADER_GAUGES = ("slowest", "worker_bytes")
_LOADER_COUNTS = tuple(f.name for f in fields(wire.Loader) if f.name not in _LOADER_GAUGES)


def continued(before: Session, session: Session) -> Session:
    """Return the session with the counts of the one `before` added; its gauges and facts are its own."""
    started = before.hello.started if before.hello.started is not None else session.hello.started
    return session._replace(
        hello=replace(session.hello, started=started),
        snap=_snap(before.snap, session.snap),
        record=_record(before.record, session.record),
        thread={**before.thread, **{p: before.thread.get(p, ThreadTime()).plus(t) for p, t in session.thread.items()}},
    )


def _snap(before: wire.Snap | None, snap: wire.Snap | None) -> wire.Snap | None:
    if before is None:
        return snap
    if snap is None:  # nothing is reported yet
        devices, loader = _devices(before.devices, ()), _loader(before.loader, None)
        return replace(before, parameters=(), optimizer_state=(), devices=devices, loader=loader)
    counts: dict[str, Any] = {name: _sum(getattr(before, name), getattr(snap, name)) for name in _SNAP_COUNTS}
    return replace(
        snap,
        steps=_progress(before.steps, snap.steps),
        batches=_progress(before.batches, snap.batches),
        waits=None if before.waits is None and snap.waits is None else _sums(before.waits or {}, snap.waits or {}),
        flops=None if before.flops is None and snap.flops is None else _sums(before.flops or {}, snap.flops or {}),
        step_source=snap.step_source or before.step_source,
        devices=_devices(before.devices, snap.devices),
        loader=_loader(before.loader, snap.loader),
        **counts,
    )


def _record(before: SharedRecord | None, record: SharedRecord | None) -> SharedRecord | None:
    if before is None or record is None:
        return record
    return replace(
        record,
        steps=before.steps + record.steps,
        batches=before.batches + record.batches,
        seconds=_sums(before.seconds, record.seconds),
        samples=before.samples + record.samples,
        tokens=before.tokens + record.tokens,
        waits=_sums(before.waits, record.waits),
        last_step=record.last_step if record.last_step is not None else before.last_step,
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
    return (*added, *(_device(earlier[uuid], wire.Device(earlier[uuid].index, uuid)) for uuid in others))


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


def _sums(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {key: before.get(key, 0.0) + now.get(key, 0.0) for key in {**before, **now}}
