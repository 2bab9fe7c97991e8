"""AMD's GPUs."""

from __future__ import annotations

from gpugauge.driver.vendors.vendor import Vendor, peaks_of

# Of the GPUs in a processor (LLVM, "User Guide for AMDGPU Backend", APU), those for which the builds of torch at
# pytorch.org have no code: theirs is for gfx900, 906, 908, 90a, 942, 950, 1030, 1100 to 1102, 1150, 1151, 1200, 1201
# (https://github.com/pytorch/pytorch/pull/164854 and 167299). AMD builds for gfx1103, 1152 and 1153, too
# (https://github.com/ROCm/TheRock, cmake/therock_amdgpu_targets.cmake); it is not asked for.
UNBUILT = frozenset(
    {
        *("gfx801", "gfx810", "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"),
        *("gfx1152", "gfx1153"),
    }
)

AMD = Vendor(
    name="AMD",
    worker="gpugauge.driver.amd.worker",
    build="rocm",
    events="",
    tool="amd-smi",
    words={
        "reset_gpus": "amd-smi reset --gpureset -g all",
        "reset_gpu": "amd-smi reset --gpureset -g {index}",
        "compute": "amd-smi partition -g {index}",
        "divide": "see its partitions (amd-smi partition -g {index})",
        "files": "/dev/kfd and /dev/dri/renderD* (the groups render and video)",
        "holders": "fuser -v /dev/kfd",
        "log": "dmesg | grep -i -e amdgpu -e kfd",
        "errors": "errors of amdgpu (dmesg | grep -i amdgpu)",
        "failures": "dmesg | grep -i -e amdgpu -e kfd",
        "module": "amdgpu ",
        "toolkit": "ROCm",
        "visibility": "HIP_VISIBLE_DEVICES",
        "list": "amd-smi list",
        "links": "amd-smi xgmi",
        "memory_errors": "amd-smi metric --gpu {index} --ecc",
        "link_errors": "amd-smi xgmi",
        "width": "amd-smi metric --gpu {index} --pcie",
        "diagnostics": "AMD's ROCm validation suite (rvs)",
    },
    opening={
        "gpu_not_found": "amdgpu has no GPU: see the kernel log (dmesg | grep -i amdgpu)",
        # Of NVIDIA's, which is asked where the kernel has no GPU of AMD.
        "library_not_found": "the kernel has no GPU of AMD: load its driver (modprobe amdgpu), and see the kernel log",
    },
    recovery={},
    error_classes=(),
    error_labels=lambda code: (str(code), "other", ""),
    in_log=(),
    error_advice={},
    min_drivers={},
    peaks=peaks_of("AMD"),
    lacks=(
        *("gpu_*_active_ratio", "gpu_*_active_seconds_total", "gpu_*occupancy*", "gpu_profil*", "gpu_nvlink_*"),
        *("gpu_xid_*", "gpu_bar1_*", "gpu_fan_*", "gpu_remapped_*", "gpu_row_remapper_banks", "gpu_retired_*"),
        *("gpu_*memory_reserved_bytes", "gpu_mig_memory_used_bytes", "gpu_mig_process_*", "gpu_power_instant_watts"),
        *("gpu_performance_state", "gpu_encoder_sessions", "gpu_compute_mode", "gpu_persistence_mode"),
        *("gpu_accounting_mode", "gpu_display_active", "gpu_cuda_cores", "gpu_ecc_mode", "gpu_recovery_action"),
        *("gpu_pcie_transmitted_*", "gpu_pcie_received_*", "gpu_pcie_errors_total", "gpu_process_device_files"),
        *("gpu_process_busy_seconds_total", "gpu_unaccounted_busy_seconds_total", "gpu_mig_changes_total"),
    ),
    unbuilt=UNBUILT,
)
