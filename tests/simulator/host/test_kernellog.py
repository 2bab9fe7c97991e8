from __future__ import annotations

from gpugauge.driver.bus import pci_address
from gpugauge.driver.nvidia.bus import parse
from gpugauge.simulator.host.procfs import kernel_log
from tests.simulator.build import Clock, scenario

TEXT = """
gpus:
  - {model: h100, health: {xids: [{at: -20, xid: 48}, {at: 5, xid: 31}]}}
  - {model: h100, health: {xids: [{at: -30, xid: 79}]}}
"""


def test_errors_from_before_the_start_in_the_order_of_their_times() -> None:
    made = scenario(TEXT)
    made._start |= {"monotonic": made._start["monotonic"] + 1000}
    addresses = [pci_address(device.bus_id).partition(".")[0] for device in Clock().world(TEXT).devices]

    found = parse(kernel_log(made).encode())

    assert [(event.address, event.xid) for event in found] == [(addresses[1], 79), (addresses[0], 48)]
    assert round(found[1].seconds - found[0].seconds, 3) == 10.0


def test_errors_from_before_the_boot_are_just_after_it() -> None:
    """At 0, the daemon would take them for processed."""
    made = scenario(TEXT)
    made._start |= {"monotonic": 25.0}

    first, second = (event.seconds for event in parse(kernel_log(made).encode()))

    assert (0 < first < 0.1, round(second, 1)) == (True, 5.0)


def test_without_such_errors_it_is_empty() -> None:
    assert kernel_log(scenario("gpus: {model: h100}")) == ""
