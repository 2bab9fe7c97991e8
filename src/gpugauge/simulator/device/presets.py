"""The GPU models of scenarios: figures of data sheets, and the features that each model lacks."""

from __future__ import annotations

from typing import Any

_MIB = 1 << 20
MAX_NVLINKS = 36

# By feature: the functions (patterns) and the field ids that a GPU without it does not support.
WITHOUT: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "ecc": ((), tuple(range(1, 7))),
    "fans": (("nvmlDeviceGetNumFans", "nvmlDeviceGetFan*"), ()),
    "gpm": (("nvmlGpmSampleGet", "nvmlGpmMigSampleGet"), ()),
    "jpeg": (("nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization"), ()),
    "memory_temperature": ((), (82,)),
    "mig": (("nvmlDeviceGetMigMode",), ()),
    "mps": (("nvmlDeviceGetMPSComputeRunningProcesses_v3",), ()),
    "nvlink": (
        ("nvmlDeviceGetNvLinkState",),
        (38, 45, 52, 59, *range(84, 90), 91, *range(132, 140), *range(160, 166), 202, 204, *range(206, 216)),
    ),
    "nvlink_5": ((), (202, 204, *range(206, 216))),
    "nvlink_before_5": ((), (38, 45, 52, 59, 138, 139, *range(160, 164))),
    "page_retirement": ((), (29, 30, 31)),
    "pcie_counters": ((), tuple(range(173, 184))),
    "recovery_action": ((), (230,)),
    "row_remapping": (("nvmlDeviceGetRowRemapperHistogram",), tuple(range(142, 146))),
    "serial": (("nvmlDeviceGetSerial", "nvmlDeviceGetBoardPartNumber"), ()),
    "throttle_counters": ((), tuple(range(74, 80))),
    # Not supported for a whole GPU with MIG enabled.
    "utilization": (
        (
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetProcessUtilization",
            "nvmlDeviceGet*coderUtilization",
            "nvmlDeviceGetEncoderStats",
            "nvmlGpmSampleGet",
        ),
        (),
    ),
}

_MODELS = ("h100", "h200", "a100", "b200", "geforce", "t4")
# By figure: the values of these models. Architectures are those of nvmlDeviceArchitecture_t: 6 Turing, 7 Ampere, 8 Ada,
# 9 Hopper, 10 Blackwell. Clocks are in megahertz, with a process on the GPU and without.
_FIGURES: dict[str, tuple[Any, ...]] = {
    "name": (
        *("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA B200"),
        *("NVIDIA GeForce RTX 4090", "Tesla T4"),
    ),
    "vbios": (
        *("96.00.89.00.01", "96.00.BC.00.01", "92.00.45.00.03", "97.00.88.00.0F"),
        *("95.02.18.00.01", "90.04.38.00.03"),
    ),
    "part_number": (
        *("692-2G520-0200-000", "699-2G530-0220-000", "692-2G506-0212-002", "692-2G525-0220-000"),
        *("", "900-2G183-0000-001"),
    ),
    "architecture": (9, 9, 7, 10, 8, 6),
    "compute_capability": ((9, 0), (9, 0), (8, 0), (10, 0), (8, 9), (7, 5)),
    "cores": (16896, 16896, 6912, 18944, 16384, 2560),
    "memory": tuple(_MIB * size for size in (81559, 143771, 81920, 183359, 24564, 15360)),
    "memory_reserved": tuple(_MIB * size for size in (551, 600, 681, 720, 366, 449)),
    "idle_watts": (70, 75, 60, 140, 20, 10),
    "power_limit_watts": (700, 700, 400, 1000, 450, 70),
    "clock": ((1980, 345), (1980, 345), (1410, 210), (1965, 120), (2745, 210), (1590, 300)),
    "clock_memory": ((2619, 2619), (3201, 3201), (1593, 1593), (3996, 3996), (10501, 405), (5001, 405)),
    "clock_video": ((1545, 765), (1545, 765), (1290, 585), (1515, 600), (2175, 1185), (1470, 540)),
    "idle_performance_state": (0, 0, 0, 0, 8, 8),
    "fans": (0, 0, 0, 0, 2, 0),
    "pcie": ((5, 16), (5, 16), (4, 16), (5, 16), (4, 16), (3, 16)),
    "nvlinks": (18, 18, 12, 18, 0, 0),
    "nvlink_megabytes_per_second": (26562, 26562, 25781, 53125, 0, 0),
    "mig_slice_sms": (16, 16, 14, 20, 0, 0),
}
_LACKS = {
    "h100": ("fans", "nvlink_5", "page_retirement"),
    "h200": ("fans", "nvlink_5", "page_retirement"),
    "a100": ("fans", "gpm", "nvlink_5", "page_retirement"),
    "b200": ("fans", "nvlink_before_5", "page_retirement"),
    "geforce": (
        *("ecc", "gpm", "memory_temperature", "mig", "mps", "nvlink", "page_retirement"),
        *("pcie_counters", "recovery_action", "row_remapping", "serial"),
    ),
    "t4": ("fans", "gpm", "jpeg", "memory_temperature", "mig", "nvlink", "recovery_action", "row_remapping"),
}
_AMD_MODELS = ("mi300x", "w7900", "strix-halo")
# AMD's, by data sheets. An APU has the memory of the machine. `amd` is what only these have: the layout of gpu_metrics,
# the architecture as KFD has it, the number of compute units.
_AMD_FIGURES: dict[str, tuple[Any, ...]] = {
    "name": ("AMD Instinct MI300X OAM", "AMD Radeon PRO W7900", "AMD Radeon 8060S Graphics"),
    "vbios": ("113-M3000100-102", "113-D7060100-138", "113-STRXLGEN-001"),
    "compute_capability": ((9, 4), (11, 0), (11, 5)),
    "memory": tuple(_MIB * size for size in (196592, 49136, 65536)),
    "memory_reserved": tuple(_MIB * size for size in (283, 120, 100)),
    "idle_watts": (140, 18, 8),
    "power_limit_watts": (750, 241, 120),
    "clock": ((2100, 132), (2495, 48), (2900, 600)),
    "clock_memory": ((1300, 900), (1124, 96), (1000, 400)),
    "pcie": ((5, 16), (4, 16), (4, 16)),
    "amd": (
        {"table": "1.9", "target": 90402, "units": 304, "device": "0x74a1", "ecc": True},
        {"table": "1.3", "target": 110000, "units": 96, "device": "0x7448", "ecc": True},
        {"table": "3.0", "target": 110501, "units": 40, "device": "0x1586", "ecc": False},
    ),
}
_NOT_OF_AMD = dict.fromkeys(_FIGURES, 0) | {"clock_video": (0, 0), "part_number": ""}
PRESETS: dict[str, dict[str, Any]] = {
    model: {**{figure: values[place] for figure, values in _FIGURES.items()}, "lacks": _LACKS[model]}
    for place, model in enumerate(_MODELS)
}
PRESETS |= {
    model: {**_NOT_OF_AMD, **{figure: values[place] for figure, values in _AMD_FIGURES.items()}, "lacks": ()}
    for place, model in enumerate(_AMD_MODELS)
}
