"""NVIDIA's GPUs, and Xid codes: the name, and the class of the action that NVIDIA's catalogue recommends.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

import json
from pathlib import Path

from gpugauge.driver.vendors.vendor import LINK, UNCORRECTED, Vendor, peaks_of

# By class, code and name of its errors. What to do: `application` restart the application, `ignorable` nothing unless
# other errors follow, `reset` reset the GPU, `workflow` (memory, NVLink) reset it when it is free, and follow that of
# the catalogue if it returns, `node` check the machine, `recovery` see gpu_recovery_action, `follow_up` see the earlier
# error. `other` has no class.
_NAMES = json.loads(Path(__file__).with_name("xids.json").read_text(encoding="utf-8"))
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


NVIDIA = Vendor(
    name="NVIDIA",
    worker="gpugauge.driver.nvidia.worker",
    build="cuda",
    events="nvml",
    tool="nvidia-smi",
    words={
        "reset_gpus": "nvidia-smi --gpu-reset",
        "reset_gpu": "nvidia-smi --gpu-reset -i {index}",
        "compute": "nvidia-smi -i {index} -c DEFAULT",
        "divide": "create one (nvidia-smi mig -i {index} -cgi … -C), or switch MIG off (nvidia-smi -mig 0)",
        "files": "/dev/nvidia*",
        "holders": "nv-hostengine, nvidia-persistenced: fuser -v /dev/nvidia*",
        "log": "dmesg | grep -i nvrm",
        "errors": "Xid errors (dmesg | grep Xid)",
        "failures": "dmesg | grep -e Xid -e NVRM",
        "module": "",
        "toolkit": "CUDA",
        "visibility": "CUDA_VISIBLE_DEVICES",
        "list": "nvidia-smi -L",
        "links": "errors: nvidia-smi nvlink -e -i {index}, ends: nvidia-smi nvlink -R -i {index}",
        "memory_errors": "nvidia-smi -q -i {index} -d ECC,ROW_REMAPPER",
        "link_errors": "nvidia-smi nvlink -e -i {index}",
        "width": "nvidia-smi -q -i {index} | grep -A2 Width",
        "diagnostics": "NVIDIA's field diagnostics",
    },
    opening={
        "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver; a container needs the NVIDIA "
        "runtime and NVIDIA_DRIVER_CAPABILITIES=utility",
        "driver_not_loaded": "the NVIDIA library is there but its kernel driver is not loaded: load the module "
        "(modprobe nvidia), or give the container the device files",
        "no_permission": "the driver denies access: allow this user to open /dev/nvidiactl and /dev/nvidia*",
        "timeout": "opening the driver timed out: check the kernel log for Xid errors",
    },
    recovery={
        "gpu_reset": ("a reset of the GPU", "{reset}"),
        "node_reboot": ("a reboot of the node", "{reboot}"),
        "drain_p2p": (
            "that peer-to-peer traffic is drained",
            "{hand}end the programs on it and on its NVLink peers",
        ),
        "drain_and_reset": (
            "that it is drained and reset",
            "{hand}end the programs on its NVLink peers, too; {reset}",
        ),
        "recover_imex_domain": (
            "a recovery of the IMEX domain",
            "{hand}end the job on all nodes of the IMEX domain, and restart nvidia-imex there",
        ),
        "bus_reset": ("a reset of its PCI bus", "{reboot}resets the bus of"),
        "system_reboot": ("a reboot of the system", "{power}"),
    },
    error_classes=tuple(XID_CLASSES),
    error_labels=xid_labels,
    in_log=IN_LOG,
    error_advice={
        # Others are not affected.
        "94": "restart the program that has ended, on another GPU until the repair: its pid is in `dmesg | grep Xid`; "
        "{later}; {reset}",
        "reset": "{reset}",
        "48": UNCORRECTED,
        "workflow": LINK,
        "node": "{hand}inspect the machine: the slot, the power and the firmware of the GPU",
    },
    # https://docs.nvidia.com/deploy/cuda-compatibility/
    min_drivers={11: 450, 12: 525, 13: 580},
    peaks=peaks_of("NVIDIA"),
    lacks=("gpu_gfx_target_info", "gpu_partition_info", "gpu_xgmi_*"),
)
