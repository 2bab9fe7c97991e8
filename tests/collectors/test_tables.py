"""The tables of the device collectors, by reading."""

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.device.clocks import ClocksCollector
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.health import HealthCollector
from gpugauge.collectors.device.links import LinksCollector
from gpugauge.collectors.device.mig import MigCollector
from gpugauge.driver.api import RELEASED, Device, DeviceReading, DriverView, MigReading

Values = dict[tuple[str, ...], object]


def tick(*devices: Device) -> Tick:
    return Tick(1.0, 1.0, DriverView(True, "ok", devices=devices))


def device(reading: DeviceReading, *, up: bool = True, generation: int = 1) -> Device:
    groups = ("static", "fast", "normal", "slow", "processes", "mig")
    return Device("GPU-a", up, "ok" if up else "gpu_is_lost", reading, dict.fromkeys(groups, generation))


def values(collector: RegisteredCollector, *devices: Device) -> dict[str, Values]:
    return {f.metric.name: dict(f.samples) for f in collector.collect(tick(*devices)).families}


def test_units_are_base_units() -> None:
    reading = DeviceReading(power_milliwatts=612_400, energy_millijoules=5_000, clock_sm_mhz=1980)

    exported = values(DeviceCollector(), device(reading)) | values(ClocksCollector(), device(reading))

    assert exported["gpu_power_watts"] == {("GPU-a",): 612.4}
    assert exported["gpu_energy_joules_total"] == {("GPU-a",): 5.0}
    assert exported["gpu_clock_hertz"] == {("GPU-a", "sm"): 1.98e9}


def test_unreported_readings_have_no_series() -> None:
    collectors = (DeviceCollector(), ClocksCollector(), HealthCollector(), LinksCollector(), MigCollector())
    exported = {name for collector in collectors for name in values(collector, device(DeviceReading()))}

    assert exported == {"gpu_up", "gpu_info"}


def test_device_that_is_down_keeps_its_identity_only() -> None:
    exported = values(DeviceCollector(), device(DeviceReading(name="H100", power_milliwatts=1), up=False))

    assert exported["gpu_up"] == {("GPU-a",): 0}
    assert exported.keys() == {"gpu_up", "gpu_down_reason", "gpu_info"}


def test_device_whose_driver_is_released_is_neither_up_nor_down() -> None:
    reading = DeviceReading(name="H100")
    collector = DeviceCollector()

    lost = values(collector, device(reading, up=False))
    released = values(collector, Device("GPU-a", False, RELEASED, reading, device(reading).generations))

    assert lost.keys() == {"gpu_up", "gpu_down_reason", "gpu_info"}
    assert released.keys() == {"gpu_info"}


def test_same_section_until_something_is_new() -> None:
    collector = DeviceCollector()
    reading = DeviceReading(power_milliwatts=1)

    first = collector.collect(tick(device(reading)))
    same = collector.collect(tick(device(reading)))
    new = collector.collect(tick(device(reading, generation=2)))

    assert first is same
    assert new is not first


def test_supported_reasons_are_zero_and_others_absent() -> None:
    reading = DeviceReading(
        clocks_event_reasons=["sw_power_cap"],
        clocks_event_reasons_supported=["sw_power_cap", "hw_thermal_slowdown"],
        clocks_event_nanoseconds={"hw_thermal_slowdown": 5 * 10**8},
    )

    exported = values(ClocksCollector(), device(reading))

    assert exported["gpu_clocks_event_active"] == {("GPU-a", "sw_power_cap"): 1, ("GPU-a", "hw_thermal_slowdown"): 0}
    assert exported["gpu_clocks_event_seconds_total"] == {("GPU-a", "hw_thermal_slowdown"): 0.5}


def test_ecc_errors_by_type_and_scope() -> None:
    reading = DeviceReading(ecc_errors={"corrected_volatile": 3, "uncorrected_aggregate": 0})

    exported = values(HealthCollector(), device(reading))

    assert exported["gpu_ecc_errors_total"] == {
        ("GPU-a", "corrected", "volatile"): 3,
        ("GPU-a", "uncorrected", "aggregate"): 0,
    }


def test_link_has_current_and_maximum_width() -> None:
    exported = values(LinksCollector(), device(DeviceReading(pcie_width=8, pcie_width_max=16)))

    assert exported["gpu_pcie_width"] == {("GPU-a", "current"): 8, ("GPU-a", "max"): 16}


def test_mig_devices_have_uuids_and_families_of_their_own() -> None:
    part = MigReading("MIG-1", 7, 0, "1g.10gb", sm_count=16, memory_used_bytes=5, sm_active_percent=25)

    exported = values(MigCollector(), device(DeviceReading(mig_mode=True, mig_instances=(part,))))

    assert exported["gpu_mig_info"] == {("MIG-1", "GPU-a", "1g.10gb", "7", "0"): 1}
    assert exported["gpu_mig_sm_active_ratio"] == {("MIG-1",): 0.25}
    assert exported["gpu_mig_mode"] == {("GPU-a", "current"): 1}
