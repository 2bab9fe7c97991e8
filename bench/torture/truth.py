"""A node of which everything is known: GPUs with constant work, so that a wrong value is wrong at any second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.torture.page import Page
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import Scenario, parse_scenario

_LOADS = (0.25, 0.5, 0.75)
# Seconds: what is shown may be as old as this (sampling.stale_after_seconds, and a tick), but no older.
_STALE = 11.5
# Shares: the rings tell whole percents, and a window cuts samples.
_TOLERANCE = 0.02
_LONG_ENOUGH = 3.0  # observed seconds over which a share is judged
_WORKING = 41000


class Truth:
    """A scenario of so many GPUs, each with its own constant load, and what must be shown of each. `clock_steps` are
    those of the driver's clock, `gpu` more keys of single GPUs, `faults` the scenario's faults.
    """

    def __init__(
        self,
        devices: int,
        faults: Sequence[Mapping[str, Any]],
        gpu: Mapping[int, Mapping[str, Any]],
        pids: Sequence[int] = (),
    ) -> None:
        self.uuids = [f"GPU-{i}" for i in range(devices)]
        self.shares = {uuid: _LOADS[i % len(_LOADS)] for i, uuid in enumerate(self.uuids)}
        pids = pids or [_WORKING + i for i in range(devices)]
        memory = [f"{10 + i % 60}GiB" for i in range(devices)]
        self.plain: dict[str, Any] = {
            "description": "GPUs of constant work",
            "gpus": [{"model": "h100", "uuid": uuid, **gpu.get(i, {})} for i, uuid in enumerate(self.uuids)],
            "processes": [
                {"pid": pid, "gpus": [i], "memory": memory[i], "load": self.shares[f"GPU-{i}"], "start": -90000}
                for i, pid in enumerate(pids)
            ],
            "faults": list(faults),
        }

    def scenario(self) -> Scenario:
        """Return it, begun now."""
        return parse_scenario(json.dumps(self.plain), "torture.yaml", "torture")  # JSON is YAML

    def gauges(self) -> dict[str, dict[str, float]]:
        """Return by GPU what its gauges show at any second."""
        devices = World(self.scenario().simulation()).devices
        return {device.uuid: _gauges(device, self.shares[device.uuid]) for device in devices}


def _gauges(device: Any, share: float) -> dict[str, float]:
    at = 1000.0  # any second: the load is constant
    return {
        f'gpu_power_watts{{uuid="{device.uuid}"}}': device.power(at) / 1000,
        f'gpu_power_limit_watts{{uuid="{device.uuid}"}}': device.power_limit_watts,
        f'gpu_memory_used_bytes{{uuid="{device.uuid}"}}': device.memory_used(at),
        f'gpu_memory_total_bytes{{uuid="{device.uuid}"}}': device.memory_total,
        f'gpu_temperature_celsius{{sensor="gpu",uuid="{device.uuid}"}}': device.temperature(at),
        f'gpu_clock_hertz{{domain="sm",uuid="{device.uuid}"}}': device.clock(1, at) * 1e6,
        f'gpu_utilization_ratio{{uuid="{device.uuid}"}}': share,
        f'gpu_graphics_active_ratio{{uuid="{device.uuid}"}}': share,
        f'gpu_ecc_mode{{uuid="{device.uuid}",when="current"}}': 1.0,
        f'gpu_pcie_width{{uuid="{device.uuid}",when="current"}}': 16.0,
    }


class Judge:
    """Looks at one page after the other for what cannot be true; each kind of wrong is one sentence."""

    def __init__(self, truth: Truth) -> None:
        self.gauges = truth.gauges()
        self._shares = truth.shares
        self._highest: dict[str, float] = {}
        self._begin: dict[str, tuple[float, float]] = {}
        self.wrong: dict[str, int] = {}
        """How many pages showed it, by sentence."""

    def whole(self, page: Page) -> bool:
        """Whether every gauge of every GPU is there, and every collector works."""
        return (
            not page.error
            and all(series in page.series for gauges in self.gauges.values() for series in gauges)
            and all(page.value(f'gpu_up{{uuid="{uuid}"}}') == 1 for uuid in self.gauges)
            and all(value == 1 for _, value in page.of("gpugauge_collector_success"))
        )

    def look(self, page: Page, unix: float | None) -> None:
        """Judge a page that came at `unix`, a time by the daemon's own clock; None when that is not to be looked at."""
        if page.error:
            return
        for sentence in (*self._gauge_errors(page), *self._counter_errors(page), *self._old(page, unix)):
            self.wrong[sentence] = self.wrong.get(sentence, 0) + 1

    def _gauge_errors(self, page: Page) -> list[str]:
        found = []
        for uuid, gauges in self.gauges.items():
            down = page.value(f'gpu_up{{uuid="{uuid}"}}') != 1
            for series, true in gauges.items():
                shown = page.value(series)
                if shown is None:
                    continue
                if abs(shown - true) > max(_TOLERANCE if true < 1 else 0.0, 1e-6 * abs(true)):
                    found.append(f"{series} is {shown:g} and not {true:g}")
                elif down:
                    found.append(f"{series} although the GPU is not up")
        return found

    def _counter_errors(self, page: Page) -> list[str]:
        found = []
        for series in page.counters:
            value = page.series.get(series)
            # Of the present worker: a new one begins anew, which the start time tells.
            if value is None or 'part="worker"' in series:
                continue
            if value < self._highest.get(series, value):
                found.append(f"{series} falls from {self._highest[series]:g} to {value:g}")
            self._highest[series] = value
        for uuid, share in self._shares.items():
            labels = f'{{engine="gpu",uuid="{uuid}"}}'
            busy = page.value(f"gpu_busy_seconds_total{labels}")
            observed = page.value(f"gpu_observed_seconds_total{labels}")
            if busy is None or observed is None:
                continue
            busy_then, observed_then = self._begin.setdefault(uuid, (busy, observed))
            seconds = observed - observed_then
            if seconds > _LONG_ENOUGH and abs((busy - busy_then) / seconds - share) > _TOLERANCE:
                found.append(f"{uuid} was busy for {(busy - busy_then) / seconds:.3f} of the time and not {share:g}")
        return found

    def _old(self, page: Page, unix: float | None) -> list[str]:
        taken = page.value("gpugauge_snapshot_timestamp_seconds")
        if taken is None:
            return ["no gpugauge_snapshot_timestamp_seconds"]
        # By when the scrape was answered; one that waited is judged by what it was given.
        if (
            unix is not None
            and unix - taken > _STALE
            and any(series.startswith(("gpu_", "torch_")) for series in page.series)
        ):
            return ["values older than they may be"]
        return []
