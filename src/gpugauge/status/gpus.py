"""The GPUs as plain data, with their MIG devices, their health and their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpugauge.driver.advice import REMEMBERED, down_advice
from gpugauge.faults.table import Ailment, slowdowns, xid_advice
from gpugauge.status.history import History, by_labels
from gpugauge.status.problem import section_of_xid
from gpugauge.status.processes import Entry, Families, current, processes_of, rows, workload

_LOAD_WINDOW_SECONDS = 300.0
_XID_SECONDS = 86_400.0  # for which an Xid error is shown
# Fields of a GPU that hold one number, and their families.
_FIGURES = {
    "load": "gpu_utilization_ratio",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "memory_total_bytes": "gpu_memory_total_bytes",
    "power_watts": "gpu_power_watts",
    "power_limit_watts": "gpu_power_limit_watts",
}
_MIG_USED_BYTES = 128 << 20  # an empty MIG device has some tens of MiB in use, a CUDA context some hundreds
_MIG_FIGURES = {
    "load": "gpu_mig_sm_active_ratio",
    "memory_used_bytes": "gpu_mig_memory_used_bytes",
    "memory_total_bytes": "gpu_mig_memory_total_bytes",
}


def gpus(
    found: Families,
    history: History,
    processes: Sequence[Entry],
    faults: Mapping[str, Sequence[Ailment]],
    now: float,
) -> list[Entry]:
    """Return the GPUs by index, without their states. `now` is the Unix time of the snapshot, whose `faults` are those
    of the GPUs by uuid.
    """
    known = {facts["uuid"]: facts for facts in rows(found.get("gpu_info"))}
    figures = {name: by_labels(found.get(metric), "uuid") for name, metric in _FIGURES.items()}
    hidden = by_labels(found.get("gpu_process_hidden"), "uuid")
    down = {labels[0]: labels[1] for labels in by_labels(found.get("gpu_down_reason"), "uuid", "reason")}
    allocation, health, mig = _Allocation(found), _Health(found, faults, now), _mig(found)
    unread = by_labels(found.get("gpu_reading_failed"), "uuid", "reading", "reason")
    widths = by_labels(found.get("gpu_pcie_width"), "uuid", "when")
    on_mig: dict[str, dict[str, float]] = {}
    for (label, uuid), used in by_labels(found.get("gpu_mig_process_memory_used_bytes"), "process", "uuid").items():
        on_mig.setdefault(uuid, {})[label] = used
    users: dict[str, list[Entry]] = {}
    for process in processes:
        for uuid in process["devices"]:
            own = [d["uuid"] for d in mig.get(uuid, []) if process["process"] in on_mig.get(d["uuid"], ())]
            users.setdefault(uuid, []).append({**_on_device(process, uuid), "mig": own})
    result: list[Entry] = []
    for (uuid,), up in by_labels(found.get("gpu_up"), "uuid").items():
        index = known.get(uuid, {}).get("index", "")
        number = int(index) if index.isdecimal() else None
        result.append(
            {
                "index": number,
                "uuid": uuid,
                "name": known.get(uuid, {}).get("name"),
                "pci_bus_id": known.get(uuid, {}).get("pci_bus_id"),
                "up": bool(up),
                "down_reason": down.get(uuid),
                "advice": None if up else down_advice(down.get(uuid)),
                **{name: values.get((uuid,)) for name, values in figures.items()},
                "load_5m": history.load(uuid, _LOAD_WINDOW_SECONDS),
                "pcie_width": widths.get((uuid, "current")),
                "pcie_width_max": widths.get((uuid, "max")),
                "load_10m": [[round(ago, 1), _rounded(share)] for ago, share in history.loads(uuid)],
                **health.of(uuid, "?" if number is None else number, _pids(users.get(uuid, []))),
                "unread": {reading: reason for (u, reading, reason) in unread if u == uuid},
                "mig": [_mig_state(device | allocation.of(device["uuid"]), on_mig) for device in mig.get(uuid, [])],
                **allocation.of(uuid),
                "processes": users.get(uuid, []),
                "processes_hidden": int(hidden.get((uuid,), 0)),
                **({} if up else _last_use(uuid, history, processes)),
            }
        )
    return sorted(result, key=lambda gpu: (gpu["index"] is None, gpu["index"], gpu["uuid"]))


def _pids(processes: Sequence[Entry]) -> list[int]:
    return sorted(process["pid"] for process in processes if process["pid"] is not None and not process["ended"])


def mark_remembered(gpus: Sequence[Entry]) -> None:
    """Mark GPUs of which only the state file knows, on a machine without a GPU and without a driver."""
    for gpu in gpus:
        gpu |= {"down_reason": REMEMBERED, "advice": down_advice(REMEMBERED)}


class _Allocation:
    """To whom the GPUs and MIG devices are allocated."""

    def __init__(self, found: Families) -> None:
        self._states = current(found.get("gpu_allocation_state"), "uuid")
        self._holders: dict[str, list[Entry]] = {}
        for facts in rows(found.get("gpu_allocation_info")):
            self._holders.setdefault(facts["uuid"], []).append(dict(workload(facts)))

    def of(self, uuid: str) -> Entry:
        return {"allocation": self._states.get(uuid), "allocated_to": self._holders.get(uuid, [])}


class _Health:
    """Faults and lowered clocks of the GPUs that answer, and Xid errors of all."""

    def __init__(self, found: Families, faults: Mapping[str, Sequence[Ailment]], now: float) -> None:
        self._now, self._faults = now, faults
        self._temperatures = by_labels(found.get("gpu_temperature_celsius"), "uuid", "sensor")
        self._slowed: dict[str, list[str]] = {}
        for (uuid, reason), active in by_labels(found.get("gpu_clocks_event_active"), "uuid", "reason").items():
            if active:
                self._slowed.setdefault(uuid, []).append(reason)
        self._xids: dict[str, list[tuple[float, tuple[str, ...], bool]]] = {}
        lasting, last = (
            by_labels(found.get(name), "uuid", "xid", "class", "xid_name")
            for name in ("gpu_xid_unrepaired_timestamp_seconds", "gpu_xid_last_timestamp_seconds")
        )
        for (uuid, *labels), at in (last | lasting).items():
            unrepaired = (uuid, *labels) in lasting
            if unrepaired or now - at < _XID_SECONDS:
                self._xids.setdefault(uuid, []).append((at, tuple(labels), unrepaired))

    def of(self, uuid: str, index: object, pids: Sequence[int]) -> Entry:
        """Return the fields of the GPU with an index, which these programs use."""
        faults = [
            {"grave": f.grave, "text": f.text, "advice": f.advised(pids), "runbook": f.runbook, "kind": f.kind}
            for f in self._faults.get(uuid, ())
        ]
        own = ("grave", "text", "advice", "runbook")
        return {
            "temperature_celsius": self._temperatures.get((uuid, "gpu")),
            "faults": faults,
            "health": [{key: f[key] for key in own} for f in faults if f["kind"] == "gpu_health"],
            "slowed_by": slowdowns(self._slowed.get(uuid, [])),
            "xids": [
                {
                    "xid": int(xid) if xid.isdecimal() else None,
                    "text": f"Xid {xid}" + (f": {name}" if name else ""),
                    "class": kind,
                    "last": at,
                    "advice": (xid_advice(kind, index) if unrepaired else "") or None,
                    "runbook": section_of_xid(kind),
                }
                for at, (xid, kind, name), unrepaired in sorted(self._xids.get(uuid, []), reverse=True)
            ],
        }


def _mig(found: Families) -> dict[str, list[Entry]]:
    """Return the MIG devices by the uuid of their GPU."""
    figures = {name: by_labels(found.get(metric), "uuid") for name, metric in _MIG_FIGURES.items()}
    devices: dict[str, list[Entry]] = {}
    for facts in rows(found.get("gpu_mig_info")):
        device: Entry = {"uuid": facts["uuid"], "profile": facts.get("profile")}
        device |= {key: facts.get(key) for key in ("gpu_instance", "compute_instance")}
        device |= {name: values.get((facts["uuid"],)) for name, values in figures.items()}
        devices.setdefault(facts.get("parent_uuid", ""), []).append(device)
    return {uuid: sorted(found_here, key=_instance) for uuid, found_here in devices.items()}


def _mig_state(device: Entry, on_mig: Mapping[str, Mapping[str, float]]) -> Entry:
    """Return a MIG device with its state in words; `on_mig` is the memory of processes by MIG device."""
    memory = device["memory_used_bytes"]
    busy = bool(on_mig.get(device["uuid"])) or bool(device["load"]) or (memory or 0) >= _MIG_USED_BYTES
    known = device["load"] is not None or memory is not None
    words = device["allocation"] if device["allocation"] not in {None, "unallocated"} else None
    return device | {"state_words": words or ("in use" if busy else "free" if known else "")}


def _instance(device: Mapping[str, str | None]) -> tuple[int, int]:
    ids = [device.get("gpu_instance") or "", device.get("compute_instance") or ""]
    first, second = (int(text) if text.isdecimal() else -1 for text in ids)
    return first, second


def _on_device(process: Entry, uuid: str) -> Entry:
    """Return a process with its use of one GPU."""
    return {**_without_devices(process), **process["devices"][uuid]}


def _without_devices(process: Entry) -> Entry:
    return {key: value for key, value in process.items() if key != "devices"}


def _last_use(uuid: str, history: History, processes: Sequence[Entry]) -> Entry:
    """Return the fields of a GPU that is down about the time when it answered last; none if that is not known.

    A process that still runs has its present state, one that ended has that of the time.
    """
    use = history.last_use(uuid)
    if use is None:
        return {}
    present = {p["process"]: p for p in processes if p["ended"] is None or p["devices"]}
    then = {process["process"]: process for process in processes_of(use.families, History(), use.timestamp)}
    last = [
        {
            **_without_devices(present.get(label, then[label])),
            **then[label]["devices"].get(uuid, {}),
            "alive": label in present,
        }
        for label in use.processes
        if label in then
    ]
    return {"last_seen": use.timestamp, "last_processes": last}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
