"""A node with known values: GPUs with constant load, so that every scrape can be checked at any second."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import Scenario, parse_scenario
from qa.torture.scrape import Scrape

_LOADS = (0.25, 0.5, 0.75)
_MAX_AGE_SECONDS = 11.5  # sampling.stale_after_seconds, and a tick
# For shares: the rings contain whole percents, and a window cuts samples.
_SHARE_TOLERANCE = 0.02
_MIN_OBSERVED_SECONDS = 3.0  # over which a share is compared
_CHILD = re.compile(r'part="(worker|receiver)"')
_FIRST_PID = 41000


class Truth:
    """A scenario of `devices` GPUs, each with a constant load, and their expected values. `gpu` has further keys for
    single GPUs, `faults` are the scenario's faults.
    """

    def __init__(
        self,
        devices: int,
        faults: Sequence[Mapping[str, Any]],
        gpu: Mapping[int, Mapping[str, Any]],
        pids: Sequence[int] = (),
    ) -> None:
        self.uuids = [f"GPU-{i}" for i in range(devices)]
        loads = {uuid: _LOADS[i % len(_LOADS)] for i, uuid in enumerate(self.uuids)}
        mig = {i for i, more in gpu.items() if "mig" in more}
        # The driver reports no utilization of a GPU with MIG. Its process uses the first MIG device.
        self.shares = {uuid: share for i, (uuid, share) in enumerate(loads.items()) if i not in mig}
        pids = pids or [_FIRST_PID + i for i in range(devices)]
        memory = [f"{10 + i % 60}GiB" for i in range(devices)]
        self.plain: dict[str, Any] = {
            "description": "GPUs of constant work",
            "gpus": [{"model": "h100", "uuid": uuid, **gpu.get(i, {})} for i, uuid in enumerate(self.uuids)],
            "processes": [
                {
                    "pid": pid,
                    "gpus": [i],
                    "memory": memory[i],
                    "load": loads[f"GPU-{i}"],
                    "start": -90000,
                    **({"instance": 0} if i in mig else {}),
                }
                for i, pid in enumerate(pids)
            ],
            "faults": list(faults),
        }

    def scenario(self) -> Scenario:
        """Return the scenario, which begins now."""
        return parse_scenario(json.dumps(self.plain), "torture.yaml", "torture")  # JSON is YAML

    def gauges(self) -> dict[str, dict[str, float]]:
        """Return the expected gauges by uuid; they are the same at any second."""
        devices = World(self.scenario().simulation()).devices
        return {device.uuid: _gauges(device, self.shares.get(device.uuid)) for device in devices}


def _gauges(device: Any, share: float | None) -> dict[str, float]:
    at = 1000.0  # any second: the load is constant
    rates = () if share is None else ("gpu_utilization_ratio", "gpu_graphics_active_ratio")
    return {
        f'gpu_power_watts{{uuid="{device.uuid}"}}': device.power(at) / 1000,
        f'gpu_power_limit_watts{{uuid="{device.uuid}"}}': device.power_limit_watts,
        f'gpu_memory_used_bytes{{uuid="{device.uuid}"}}': device.memory_used(at),
        f'gpu_memory_total_bytes{{uuid="{device.uuid}"}}': device.memory_total,
        f'gpu_temperature_celsius{{sensor="gpu",uuid="{device.uuid}"}}': device.temperature(at),
        f'gpu_clock_hertz{{domain="sm",uuid="{device.uuid}"}}': device.clock(1, at) * 1e6,
        **{f'{name}{{uuid="{device.uuid}"}}': share or 0.0 for name in rates},
        f'gpu_ecc_mode{{uuid="{device.uuid}",when="current"}}': 1.0,
        f'gpu_pcie_width{{uuid="{device.uuid}",when="current"}}': 16.0,
    }


class Judge:
    """Checks scrapes against the truth, and counts the errors by sentence. With `liars`, counters of trainings may
    fall: a process can report what it likes about itself.
    """

    def __init__(self, truth: Truth, *, liars: bool = False) -> None:
        self._ignored = ("torch_", "training_") if liars else ()
        self.gauges = truth.gauges()
        self._shares = truth.shares
        self._highest: dict[str, float] = {}
        self._begin: dict[str, tuple[float, float]] = {}
        self.wrong: dict[str, int] = {}
        """Number of scrapes with an error, by sentence."""

    def whole(self, scrape: Scrape) -> bool:
        """Return whether the scrape has every gauge of every GPU, and every collector works."""
        return (
            not scrape.error
            and all(series in scrape.series for gauges in self.gauges.values() for series in gauges)
            and all(scrape.value(f'gpu_up{{uuid="{uuid}"}}') == 1 for uuid in self.gauges)
            and all(value == 1 for _, value in scrape.of("gpugauge_collector_success"))
        )

    def check(self, scrape: Scrape, unix: float | None) -> None:
        """Check a scrape answered at `unix`, by the daemon's wall clock; with None its age is not checked."""
        if scrape.error:
            return
        for sentence in (*self._gauge_errors(scrape), *self._counter_errors(scrape), *self._old(scrape, unix)):
            self.wrong[sentence] = self.wrong.get(sentence, 0) + 1

    def _gauge_errors(self, scrape: Scrape) -> list[str]:
        found = []
        for uuid, gauges in self.gauges.items():
            down = scrape.value(f'gpu_up{{uuid="{uuid}"}}') != 1
            for series, true in gauges.items():
                shown = scrape.value(series)
                if shown is None:
                    continue
                if abs(shown - true) > max(_SHARE_TOLERANCE if true < 1 else 0.0, 1e-6 * abs(true)):
                    found.append(f"{series} is {shown:g} and not {true:g}")
                elif down:
                    found.append(f"{series} although the GPU is not up")
        return found

    def _counter_errors(self, scrape: Scrape) -> list[str]:
        found = []
        for series in scrape.counters:
            value = scrape.series.get(series)
            # A new worker or receiver starts its counters at 0.
            if value is None or _CHILD.search(series) or series.startswith(self._ignored):
                continue
            if value < self._highest.get(series, value):
                found.append(f"{series} falls from {self._highest[series]:g} to {value:g}")
            self._highest[series] = value
        for uuid, share in self._shares.items():
            labels = f'{{engine="gpu",uuid="{uuid}"}}'
            busy = scrape.value(f"gpu_busy_seconds_total{labels}")
            observed = scrape.value(f"gpu_observed_seconds_total{labels}")
            if busy is None or observed is None:
                continue
            busy_then, observed_then = self._begin.setdefault(uuid, (busy, observed))
            seconds = observed - observed_then
            if seconds > _MIN_OBSERVED_SECONDS and abs((busy - busy_then) / seconds - share) > _SHARE_TOLERANCE:
                found.append(f"{uuid} was busy for {(busy - busy_then) / seconds:.3f} of the time and not {share:g}")
        return found

    def _old(self, scrape: Scrape, unix: float | None) -> list[str]:
        taken = scrape.value("gpugauge_snapshot_timestamp_seconds")
        if taken is None:
            return ["no gpugauge_snapshot_timestamp_seconds"]
        # The age at the moment of the answer.
        if (
            unix is not None
            and unix - taken > _MAX_AGE_SECONDS
            and any(series.startswith(("gpu_", "torch_")) for series in scrape.series)
        ):
            return ["values older than they may be"]
        return []
