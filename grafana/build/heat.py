"""The rows of a node's dashboard about MIG devices, and about power, heat and clocks."""

from __future__ import annotations

from functools import partial

from grafana.build.health import DEVICES, NODE, UNSUPPORTED, by_chosen_device
from grafana.build.layout import Panel
from grafana.build.panels import HOT, Query, timeseries
from grafana.build.queries import DEVICE_LEGEND, SHARE, Expr, keys

# All reasons but those of an idle GPU and of clocks that were set on request.
_SLOWDOWN = "!~gpu_idle|low_utilization|applications_clocks_setting|display_clock_setting"
_NO_MIG = "no MIG device, or not reported by these GPUs"
_graph = partial(timeseries, legend=False, empty_text=UNSUPPORTED)


def mig() -> list[Panel]:
    """Return the panels about MIG devices."""
    device, one = keys("instance", "uuid"), "max by ({})"
    info = f"max by ({device}, parent_uuid, profile) ({NODE.select('gpu_mig_info', parent_uuid='~$uuid')})"

    def of_mig(expr: str) -> Query:
        joined = f"{one.format(device)} ({expr})\n* on ({device}) group_left (parent_uuid, profile) {info}"
        return Query(Expr(joined, SHARE), "{{instance}} · {{profile}} · {{uuid}}")

    def panel(title: str, text: str, expr: str) -> Panel:
        return timeseries(title, text, of_mig(expr), highest=1, legend=False, empty_text=_NO_MIG)

    used = f"{NODE.select('gpu_mig_memory_used_bytes')} / {NODE.select('gpu_mig_memory_total_bytes')}"
    return [
        panel(
            "SM active, MIG devices",
            "Share of the multiprocessors of the MIG device with work, from the performance counters of Hopper and "
            "newer. The driver reports no utilization for older GPUs in MIG mode.",
            NODE.select("gpu_mig_sm_active_ratio"),
        ),
        panel(
            "Tensor cores active, MIG devices",
            "Share of the time in which the tensor cores of the MIG device worked.",
            NODE.select("gpu_mig_tensor_active_ratio"),
        ),
        panel("Memory used, MIG devices", "Share of the memory of the MIG device that processes hold.", used),
    ]


def heat() -> list[Panel]:
    """Return the panels about power, temperature and clocks."""
    counted = DEVICES.rate("gpu_clocks_event_seconds_total", reason=_SLOWDOWN)
    active = DEVICES.select("gpu_clocks_event_active", reason=_SLOWDOWN)
    limit = DEVICES.select("gpu_temperature_limit_celsius", limit="slowdown")
    temperature = DEVICES.select("gpu_temperature_celsius", sensor="gpu")
    return [
        _graph(
            "Power",
            "Board power at the scrapes. A GPU may run at its power limit; a busy GPU far below the limit waits for "
            "data, memory or peers.",
            Query(by_chosen_device(DEVICES.read("gpu_power_watts")), DEVICE_LEGEND),
        ),
        _graph(
            "Temperature",
            "By sensor. A GPU slows down near the limits in gpu_temperature_limit_celsius: check fans, air flow and "
            "the neighbouring GPUs.",
            Query(by_chosen_device(DEVICES.read("gpu_temperature_celsius"), "sensor"), DEVICE_LEGEND + " · {{sensor}}"),
            steps=HOT,
        ),
        _graph(
            "SM clock",
            "A clock that falls while the GPU is busy is throttled: the reasons are beside.",
            Query(by_chosen_device(DEVICES.read("gpu_clock_hertz", domain="sm")), DEVICE_LEGEND),
        ),
        _graph(
            "Memory clock",
            "It falls when the GPU is idle or saves power.",
            Query(by_chosen_device(DEVICES.read("gpu_clock_hertz", domain="memory")), DEVICE_LEGEND),
        ),
        _graph(
            "Performance state",
            "From 0 (P0, the highest performance) to 15. A busy GPU that is not in P0 to P2 is held back.",
            Query(by_chosen_device(DEVICES.read("gpu_performance_state")), DEVICE_LEGEND),
        ),
        _graph(
            "Below the slowdown",
            "Degrees between the temperature of the GPU and the limit at which it lowers its clocks.",
            Query(
                by_chosen_device(Expr(f"{limit} - ignoring (limit, sensor) {temperature}", "celsius")), DEVICE_LEGEND
            ),
        ),
        _graph(
            "Fans",
            "Intended speed as a share of the maximum, by fan. GPUs without fans of their own report none.",
            Query(by_chosen_device(DEVICES.read("gpu_fan_speed_ratio"), "fan"), DEVICE_LEGEND + " · fan {{fan}}"),
        ),
        _graph(
            "Reasons for lowered clocks",
            "Share of the scrapes at which a reason was active, without idle GPUs and clocks set on request. Thermal: "
            "check the cooling; power cap: the power limit; brake: the power supply.",
            Query(
                by_chosen_device(Expr(f"avg_over_time({active}[$__rate_interval]) > 0", SHARE), "reason"),
                DEVICE_LEGEND + " · {{reason}}",
            ),
            highest=1,
        ),
        _graph(
            "Time with lowered clocks",
            "Share of the time for the worst GPU of a node, from the counters of the driver. Not every driver counts "
            "every reason.",
            Query(counted.by("instance", "reason", operator="max"), "{{instance}} · {{reason}}"),
            highest=1,
        ),
        _graph(
            "Power of all GPUs",
            "By node, mean of 5 minutes, from the energy counters, which include all changes between scrapes. Multiply "
            "by hours and the price of energy.",
            Query(DEVICES.rate("gpu_energy_joules_total", "5m").by("instance"), "{{instance}}"),
        ),
    ]
