"""Xid errors in the kernel log. NVML's events do not include all of them: 79, 119 and 120 are missing.

https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import re

from gpugauge.driver.api import KernelXid
from gpugauge.driver.bus import pci_address

# "6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
# With MIG "(PCI:0000:3b:00 GPU-I:05)", with old drivers "(0000:3b:00)".
# The end of a fault is "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", the start of the
# driver, at boot or after `modprobe`, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06". An NVLink error has
# its severity: "145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 …)".
_RECORD = re.compile(
    rb"(?P<level>\d{1,9}),\d{1,20},(?P<time>\d{1,20}),[^;\n]*;NVRM: (?:loading NVIDIA UNIX |"
    rb"Xid \((?:PCI:)?(?P<address>[0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2})[^)\n]*\): (?P<xid>\d{1,5})\b"
    rb"(?:(?P<none>, GPU recovery action changed from \S+ \([^)\n]*\) to 0x0\b)|(?P<nonfatal>, \w+ +Nonfatal\b))?)"
)


def parse(records: bytes) -> list[KernelXid]:
    """Return the Xid errors in kernel log records, and the starts of the driver; records of programs are ignored."""
    return [
        _event(match)
        for line in records.splitlines()
        if (match := _RECORD.match(line)) and int(match["level"]) < 8  # facility 0: records of the kernel itself
    ]


def _event(match: re.Match[bytes]) -> KernelXid:
    seconds = int(match["time"]) / 1e6
    if match["xid"] is None:
        return KernelXid("", None, seconds)
    address = pci_address(match["address"].decode())
    return KernelXid(address, int(match["xid"]), seconds, bool(match["none"]), bool(match["nonfatal"]))
