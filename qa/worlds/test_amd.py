"""Drawn machines with GPUs of AMD, read from their files: each exported value is what the files were made of."""

from __future__ import annotations

import ctypes
import os
import random
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import cases, draws, seeds
from tests.golden_metrics import FOLDER

from gpugauge.artifacts.reference import vendors
from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.clocks import ClocksCollector
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.health import HealthCollector
from gpugauge.collectors.device.links import LinksCollector
from gpugauge.collectors.device.mig import MigCollector
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.driver import inventory as inventory_module
from gpugauge.driver.amd import files
from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.amd.table import decoded
from gpugauge.driver.api import DriverView, Group
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.worker import Service
from qa.worlds.amdmachine import APU, ATTRIBUTES, DESCRIBING, LAYOUTS, SECONDS, Gpu

GROUPS: tuple[Group, ...] = ("static", "fast", "samples", "profiling", "normal", "slow", "processes", "mig")
HELD = 17  # seconds for which a value is shown whose successors cannot be read
SETTLED = 45  # seconds after which all is calibrated
REASONS = {"prochot": "hw_slowdown", "ppt": "sw_power_cap", "socket_thm": "hw_thermal_slowdown"}
REASONS |= {"vr_thm": "vr_thermal_slowdown", "hbm_thm": "memory_thermal_slowdown"}
CYCLES = {(1, 6, 384), (1, 6, 1664), (1, 7, 2208), (1, 8, 3872), DESCRIBING}  # layouts with a counter of cycles
Values = dict[tuple[str, ...], float]


class World:
    """A drawn machine, its worker and the collectors, with the clock of the test."""

    def __init__(self, seed: int, root: Path, patch: pytest.MonkeyPatch) -> None:
        dice = random.Random(seed)
        self.now = 0.0
        self.gpus = [Gpu(dice, root, number) for number in range(dice.randint(1, 2))]
        (root / "sys/class/kfd/kfd/topology/generation_id").write_text("1\n")
        self.errno = 0
        opened = os.open

        def guarded(path: Any, *arguments: Any) -> int:
            for gpu in self.gpus:
                if code := gpu.refused(str(path), self.now):
                    raise OSError(code, "")
            return opened(path, *arguments)

        patch.setattr(files, "os", SimpleNamespace(**{**vars(os), "open": guarded}))
        clock = SimpleNamespace(monotonic=lambda: 1000 + self.now, time=lambda: 1.7e9 + self.now)
        patch.setattr(inventory_module, "time", clock)
        for gpu in self.gpus:
            gpu.write(0.0)
        self.service = Service(Amd(lambda: 1000 + self.now), lambda: 1000 + self.now)
        opened_reply = self.service.answer({"op": "open", "sysfs": str(root / "sys"), "procfs": str(root / "proc")})
        assert opened_reply.failed is None, opened_reply
        assert opened_reply.values["driver"]["device_count"] == len(self.gpus)
        self.inventory = Inventory(dict.fromkeys(GROUPS[1:], 15.0))  # what a GPU is does not expire
        self.collectors = (DeviceCollector(), ClocksCollector(), HealthCollector(), LinksCollector(), MigCollector())
        self.load = UtilizationCollector()

    def step(self, second: float) -> dict[str, Values]:
        """Return what is exported at a second, by uuid: values by metric and labels."""
        self.now = second
        for index, gpu in enumerate(self.gpus):
            gpu.write(second)
            reply = self.service.answer({"op": "read", "index": index, "groups": list(GROUPS)})
            self.inventory.accept(index, reply, frozenset())
        view = DriverView(True, "ok", devices=self.inventory.devices(1000 + second))
        tick = Tick(1.7e9 + second, 1000 + second, view, self.inventory.drain())
        self.devices = view.devices
        found: dict[str, Values] = {}
        for collector in (*self.collectors, self.load):
            for family in collector.collect(tick).families:
                for labels, value in family.samples:
                    assert isinstance(value, (int, float)) or family.metric.kind == "histogram"
                    key = (family.metric.name, *labels[1:])
                    found.setdefault(labels[0], {})[key] = value  # type: ignore[assignment]  # no histogram
        return found


def truth(gpu: Gpu, t: float) -> Values:
    """Return what may be exported of a GPU at a second, besides its load, energy and throttling."""
    second = min(int(t), SECONDS)
    known: Values = {
        ("gpu_memory_total_bytes",): gpu.memory,
        ("gpu_memory_used_bytes",): gpu.used(t),
        ("gpu_memory_free_bytes",): gpu.memory - gpu.used(t),
        ("gpu_temperature_limit_celsius", "slowdown"): 100,
        ("gpu_clock_max_hertz", "sm"): 2100e6,
    }
    if gpu.cap:
        known["gpu_power_limit_watts",] = gpu.cap / 1e6
    if gpu.errors:
        known["gpu_ecc_errors_total", "corrected", "volatile"] = gpu.errors[0] + 1
        known["gpu_ecc_errors_total", "uncorrected", "volatile"] = gpu.errors[1]
    if gpu.layout == APU:
        for part in ("total", "used", "free"):
            del known[f"gpu_memory_{part}_bytes",]
        known["gpu_temperature_celsius", "gpu"] = 40 + round(50 * gpu.loads[second])
        known["gpu_power_watts",] = gpu.watts(t) + 0.007
        known["gpu_clock_hertz", "graphics"] = known["gpu_clock_hertz", "sm"] = 1234e6
        return known
    if gpu.layout not in LAYOUTS and gpu.layout != DESCRIBING:
        return known
    known["gpu_temperature_celsius", "gpu"] = 40 + round(50 * gpu.loads[second])
    known["gpu_pcie_generation", "current"] = 5
    clock = 900 if gpu.layout == (1, 3, 120) else 900 + 100 * (gpu.xccs - 1)
    known["gpu_clock_hertz", "graphics"] = known["gpu_clock_hertz", "sm"] = clock * 1e6
    if gpu.watts_kind == "right":
        known["gpu_power_watts",] = gpu.watts(t)
    if gpu.layout != (1, 3, 120):
        known["gpu_pcie_replays_total",] = gpu.replays
        if links := [link for link in range(8) if link not in gpu.unlinked]:
            known["gpu_xgmi_received_bytes_total",] = 1e3 * sum(1000 * link + round(7 * t) for link in links)
            known["gpu_xgmi_transmitted_bytes_total",] = 1e3 * sum(2 * link for link in links)
    optional = {"temperature_mem": (("gpu_temperature_celsius", "memory"), 45.0)}
    optional |= {"pcie_link_width": (("gpu_pcie_width", "current"), 16.0)}
    optional |= {"current_uclk": (("gpu_clock_hertz", "memory"), 1300e6)}
    known |= {key: value for name, (key, value) in optional.items() if name not in gpu.absent}
    return known


def check(gpu: Gpu, shown: Values, t: float, history: dict[float, Values]) -> None:
    """Compare the values of a GPU with the truth: that of now, or while files fail, that of the seconds before."""
    now = history[t]
    held = [
        history[then]
        for then in history
        if t - HELD <= then < t and any(gpu.fault(s) for s in range(int(then), int(t) + 1))
    ]
    for key, value in shown.items():
        if key[0] in JUDGED:
            allowed = [now, *held]
            assert any(abs(value - each.get(key, -1e99)) < 1e-6 for each in allowed), (key, value, now.get(key), t)
    quiet = not any(gpu.fault(s) for s in range(int(t) - 3, int(t) + 1))
    missing = now.keys() - shown.keys()
    assert not quiet or t < 3 or not missing, (missing, t)
    check_energy(gpu, shown, t)
    check_reasons(gpu, shown, t)


JUDGED = {
    *("gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_power_watts"),
    *("gpu_power_limit_watts", "gpu_temperature_celsius", "gpu_temperature_limit_celsius", "gpu_clock_hertz"),
    *("gpu_clock_max_hertz", "gpu_ecc_errors_total", "gpu_pcie_generation", "gpu_pcie_width", "gpu_pcie_replays_total"),
    *("gpu_xgmi_received_bytes_total", "gpu_xgmi_transmitted_bytes_total"),
}
OTHERS = {
    *("gpu_up", "gpu_down_reason", "gpu_info", "gpu_reading_failed", "gpu_reading_failed_since_timestamp_seconds"),
    *("gpu_energy_joules_total", "gpu_clocks_event_seconds_total", "gpu_clocks_event_active", "gpu_busy_source"),
    *("gpu_busy_seconds_total", "gpu_observed_seconds_total", "gpu_unobserved_seconds_total", "gpu_utilization_ratio"),
    *("gpu_memory_utilization_ratio", "gpu_utilization_sample_ratio", "gpu_gfx_target_info", "gpu_numa_node"),
}


def check_energy(gpu: Gpu, shown: Values, t: float) -> None:
    joules = shown.get(("gpu_energy_joules_total",))
    if joules is not None:
        right = (gpu.start["energy"] / 65536) + gpu.idle_watts * t + gpu.most_watts * gpu.busy(t)
        late = HELD * (gpu.idle_watts + gpu.most_watts)
        assert gpu.energy_kind == "right", ("energy", t)
        assert right - (late if gpu.faults else 0) - 0.01 <= joules <= right + 0.01, (joules, right, t)
    elif gpu.energy_kind == gpu.watts_kind == "right" and not gpu.faults and gpu.layout in {*LAYOUTS, DESCRIBING}:
        assert t < SETTLED, ("energy is absent", t)


def check_reasons(gpu: Gpu, shown: Values, t: float) -> None:
    since = t - gpu.restarted if t >= gpu.restarted else t
    for name, reason in REASONS.items():
        seconds = shown.get(("gpu_clocks_event_seconds_total", reason))
        if seconds is not None:
            assert gpu.hertz == 1000
            assert f"{name}_residency_acc" not in gpu.ghosts, (reason, t)
            exact = gpu.throttled[f"{name}_residency_acc"] * since
            assert exact - (HELD if gpu.faults else 0) - 0.1 <= seconds <= exact + (HELD + t) * bool(gpu.faults) + 0.1
            active = shown.get(("gpu_clocks_event_active", reason))
            assert gpu.faults or active in {None, float(gpu.throttled[f"{name}_residency_acc"] > 0.5)}


def check_load(gpu: Gpu, series: list[tuple[float, Values]]) -> bool:
    """Check the busy seconds between two seconds with the exact source; return whether there were any."""
    exact = [
        (t, values)
        for t, values in series
        if values.get(("gpu_busy_source", "gpu", "accumulator")) and not gpu.fault(t) and not gpu.fault(t - 1)
    ]
    assert not exact or (gpu.layout in CYCLES and gpu.unit in {1, 100})
    for (since, before), (t, now) in zip(exact, exact[25:], strict=False):
        busy, observed = (
            now[f"gpu_{kind}_seconds_total", "gpu"] - before[f"gpu_{kind}_seconds_total", "gpu"]
            for kind in ("busy", "observed")
        )
        if observed > 0.99 * (t - since):
            assert abs(busy - (gpu.busy(t) - gpu.busy(since))) <= 0.01 * (t - since), (busy, since, t)
        assert busy <= gpu.busy(t) - gpu.busy(since) + 0.01 * (t - since), (busy, since, t)
    return bool(exact)


@seeds(draws(25, 2000))
def test_what_is_exported_is_what_the_files_say(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, tmp_path, monkeypatch)
    history: list[dict[float, Values]] = [{} for _ in world.gpus]
    series: list[list[tuple[float, Values]]] = [[] for _ in world.gpus]
    uuids: dict[int, str] = {}
    for second in range(SECONDS):
        t = second + 0.25
        shown = world.step(t)
        for device in world.devices:
            place = next(n for n, gpu in enumerate(world.gpus) if gpu.address == device.reading.pci_bus_id)
            gpu, uuid = world.gpus[place], device.uuid
            uuids.setdefault(place, uuid)
            assert uuids[place] == uuid, "the identity of a GPU does not change"
            assert not gpu.unique or uuid == f"GPU-{gpu.unique:016x}"
            assert device.vendor.name == "AMD"
            history[place][t] = truth(gpu, t)
            values = shown[uuid]
            assert {key[0] for key in values} <= JUDGED | OTHERS
            assert values["gpu_up",] == device.up
            gone = all(gpu.fault(s) == "gone" for s in range(second - 3, second + 1))
            assert not (gone and device.up), "a GPU that is gone is not up"
            if not any(gpu.fault(s) for s in range(second - 30, second + 1)):
                assert device.up, (device.reason, t)
            assert gpu.faults or device.failures == (), "what a GPU lacks is no failure"
            if device.up and gpu.fault(t) not in {"other", "suspended"}:
                check(gpu, values, t, history[place])
            if device.up and device.reading.processes is not None:
                listed = {(p.pid, p.used_memory_bytes) for p in device.reading.processes}
                assert listed == {(pid, size) for pid, size in gpu.uses.items() if size}
            series[place].append((t, values))
    for gpu, seen in zip(world.gpus, series, strict=True):
        exact = check_load(gpu, seen)
        loaded = sum(gpu.loads[:SETTLED]) / SETTLED > 0.2
        if gpu.layout in CYCLES and gpu.unit in {1, 100} and loaded and not gpu.faults:
            assert exact, "the load is never exact"


def test_the_reference_says_which_metrics_a_gpu_of_amd_has() -> None:
    texts = [(FOLDER / f"{name}.text").read_text() for name in ("mi300x", "amd-workstation")]
    found = {
        name for text in texts for name in re.findall(r'^(gpu_\w+)\{[^}]*uuid="GPU-[0-9a-f]{16}"', text, re.MULTILINE)
    }

    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in found} > {"gpu_up", "gpu_busy_seconds_total"}
    assert [name for name in found if "AMD" not in vendors(name)] == []
    assert vendors("gpu_xid_errors_total") == ["NVIDIA"]


# The fields of the kernel's structures, by the name of their value.
FIELDS = {
    "temperature": "temperature_hotspot",
    "memory_temperature": "temperature_mem",
    "watts": "curr_socket_power",
    "gfx": "average_gfx_activity",
    "memory_activity": "average_umc_activity",
    "energy": "energy_accumulator",
    "counter": "accumulation_counter",
    "prochot": "prochot_residency_acc",
    "ppt": "ppt_residency_acc",
    **{f"{name}_thermal": f"{place}_thm_residency_acc" for name, place in (("socket", "socket"), ("vr", "vr"))},
    "hbm_thermal": "hbm_thm_residency_acc",
    "lanes": "pcie_link_width",
    "speed": "pcie_link_speed",
    "gfx_acc": "gfx_activity_acc",
    "replays": "pcie_replay_count_acc",
    "xgmi_read": "xgmi_read_data_acc",
    "xgmi_written": "xgmi_write_data_acc",
    "gfxclk": "current_gfxclk",
    "uclk": "current_uclk",
}
PARTITION = {"xcc_busy": "gfx_busy_inst", "xcc_acc": "gfx_busy_acc"}


@cases("layout", LAYOUTS)
def test_each_layout_is_read_whole(layout: tuple[int, int, int]) -> None:
    kind = LAYOUTS[layout]
    made = kind.from_buffer_copy(random.Random(layout[2]).randbytes(ctypes.sizeof(kind)))
    for name, value in zip(
        ("structure_size", "format_revision", "content_revision"), (layout[2], *layout), strict=False
    ):
        setattr(made, name, value)
    if partitions := hasattr(made, "xcp_stats"):
        setattr(made, "num_partition", 8)  # noqa: B010  (of a structure that only some layouts have)
    wanted = {name: getattr(made, field) for name, field in FIELDS.items() if hasattr(made, field)}
    wanted |= {n: [v for p in made.xcp_stats for v in getattr(p, f)] for n, f in PARTITION.items() if partitions}
    found = decoded(bytes(made))

    assert found.known
    assert found.values == {n: (v,) if isinstance(v, int) else tuple(v) for n, v in wanted.items()}


def test_each_attribute_of_the_layout_that_describes_itself_has_its_name() -> None:
    content = b"".join(
        struct.pack("<QI", number << 10 | 5 << 20 | 1, 1000 + place) for place, (_, number, _) in enumerate(ATTRIBUTES)
    )
    found = decoded(struct.pack("<HBBi", 8 + len(content), 1, 9, len(ATTRIBUTES)) + content)
    names = {field: name for name, field in (FIELDS | PARTITION).items()}
    assert found.values == {names[n]: (1000 + place,) for place, (n, _, _) in enumerate(ATTRIBUTES) if n in names}
