"""Xid codes: the name, and the class of the action that NVIDIA's catalogue recommends.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

# By class, code and name of its errors.
_CATALOGUE = {
    # Error of the application, or of an engine that it uses: restart the application.
    "application": "8 GPU stopped processing; 11 Invalid or corrupted push buffer stream; "
    "13 Graphics engine exception; 25 Invalid or illegal push buffer stream; 31 GPU memory page fault; "
    "32 Invalid or corrupted push buffer stream; 39 Copy engine exception; 40 Copy engine exception; "
    "41 Copy engine exception; 60 Video processor exception; 68 NVDEC0 exception; 69 Graphics engine class error; "
    "70 CE3: unknown error; 71 CE4: unknown error; 72 CE5: unknown error; 75 CE6: unknown error; "
    "76 CE7: unknown error; 77 CE8: unknown error; 80 Corrupted data sent to GPU; 82 NVJPG0 error; 83 NVDEC1 error; "
    "84 NVDEC2 error; 85 CE9: unknown error; 86 OFA exception; 88 NVDEC3 error; 89 NVDEC4 error; "
    "94 Contained memory error; 96 NVDEC5 error; 97 NVDEC6 error; 98 NVDEC7 error; 99 NVJPG1 error; 100 NVJPG2 error; "
    "101 NVJPG3 error; 102 NVJPG4 error; 103 NVJPG5 error; 104 NVJPG6 error; 105 NVJPG7 error; "
    "126 CE10: unknown error; 127 CE11: unknown error; 128 CE12: unknown error; 129 CE13: unknown error; "
    "130 CE14: unknown error; 131 CE15: unknown error; 132 CE16: unknown error; 133 CE17: unknown error; "
    "134 CE18: unknown error; 135 CE19: unknown error; 139 OFA1 error",
    # No action, unless other errors follow.
    "ignorable": "37 Driver firmware error; 38 Driver firmware error; 43 GPU stopped processing; "
    "44 Graphics engine fault during context switch; 63 GPU memory remapping event; 66 Illegal access by driver; "
    "67 Illegal access by driver; 92 High single-bit ECC error rate; 93 Violation of the InfoROM wear limit; "
    "106 SMBPBI test message; 107 SMBPBI test message; 121 C2C error; 137 NVLink privilege error; "
    "141 CUDA fast path error; 152 DLA SMMU error; 153 DLA timeout error; 157 Resource retirement failure; "
    "160 Channel retirement event; 161 Channel retirement failure",
    # Reset the GPU.
    "reset": "46 GPU stopped processing; 62 Internal micro-controller halt; 64 GPU memory remapping failure; "
    "95 Uncontained memory error; 109 Context switch timeout error; 110 Security fault error; 119 GSP RPC timeout; "
    "120 GSP error; 136 Link training failed; 140 ECC unrecovered error; 143 GPU initialization error; "
    "155 NVLink: SW defined error; 156 Resource retirement event; 158 GPU fatal timeout",
    # Specific workflow in the catalogue: memory, NVLink.
    "workflow": "48 Double bit ECC error; 74 NVLink error; 144 NVLink: SAW error; 145 NVLink: RLW error; "
    "146 NVLink: TLW error; 147 NVLink: TREX error; 148 NVLink: NVLPW_CTRL error; 149 NVLink: NETIR error; "
    "150 NVLink: MSE error",
    # Check the machine: GPU off the bus, power, firmware.
    "node": "54 Auxiliary power is not connected; 79 GPU has fallen off the bus; 151 Key rotation error",
    # Change of the recovery action: see gpu_recovery_action.
    "recovery": "154 GPU recovery action changed",
    # Consequence of an earlier error.
    "follow_up": "45 Preemptive cleanup, due to previous errors",
    # No class, or a code that is not in this table.
    "other": "78 vGPU start error; 142 NVENC3 error; 159 CHI non-data error; 167 PCIe fatal timeout; "
    "168 Reduced GPU memory capacity; 169 Internal micro-controller halt; 171 Uncorrectable DRAM error; "
    "172 Uncorrectable SRAM error",
}
_NAMES = {kind: dict(error.split(" ", 1) for error in text.split("; ")) for kind, text in _CATALOGUE.items()}
XID_CLASSES = {kind: frozenset(map(int, names)) for kind, names in _NAMES.items()}
_LABELS = {code: (code, kind, name) for kind, names in _NAMES.items() for code, name in names.items()}
# Codes of faults that last until a reset, and those that explain a row that waits for one.
LASTING = XID_CLASSES["reset"] | XID_CLASSES["workflow"] | XID_CLASSES["node"] | {63, 94}
# NVLink errors whose severity only the kernel log has.
IN_LOG = range(144, 151)
# Those of them after which a driver from R565 on sets its recovery action: none means that the fault is over.
LINKED = frozenset({48, 62, 63, 64, 74, 79, 94, 95, 110, 120, 136, *IN_LOG, 155, 156, 158})


def xid_labels(xid: int) -> tuple[str, ...]:
    """Return code, class and name, the labels of metrics; `other` and no name for a code without an entry."""
    return _LABELS.get(str(xid), (str(xid), "other", ""))
