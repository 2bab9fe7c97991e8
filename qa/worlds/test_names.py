"""Lists of names that gpugauge knows, against a second list: each name is tried, so that none is lost unnoticed."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from pydantic import TypeAdapter
from tests.collectors.process.test_allocation import SERVER, TRAINER, FixedWorkloads, device, exported
from tests.contract import SOURCE
from tests.doctor.cases import NO_DRIVER, case
from tests.needs import need_module
from tests.web.page.test_render import table_of_ranks, with_ranks

from gpugauge import catalog
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.collectors.training import session_rows
from gpugauge.doctor import machine
from gpugauge.doctor.answer import StatusReply
from gpugauge.driver.advice import down_phrase, known_advice
from gpugauge.driver.advice import words as driver_words
from gpugauge.driver.codes import CODES
from gpugauge.driver.failing import MODES, PARTS, part_of
from gpugauge.driver.nvidia.caller import CLOCKS_EVENT_REASONS, RETURN_CODES
from gpugauge.driver.nvidia.calls import CALLS, multiprocessors
from gpugauge.driver.nvidia.fieldvalues import FIELD_VALUES
from gpugauge.driver.nvidia.gpm import FIELDS as PROFILING
from gpugauge.driver.vendors import VENDORS
from gpugauge.driver.vendors.nvidia import LASTING, LINKED, NVIDIA, XID_CLASSES, xid_labels
from gpugauge.exposition import trainings
from gpugauge.faults.table import NVLINK_CORRECTED, NVLINK_NEVER
from gpugauge.hook.arming import SWITCH_VARIABLE, switched_off
from gpugauge.hook.record import Record, phase_index
from gpugauge.hook.recorder import Recorder
from gpugauge.report import render as report_render
from gpugauge.report.compare import _answer
from gpugauge.report.model import Change, Report
from gpugauge.settings.yaml_text import parse
from gpugauge.simulator.scenario.gpuspec import Bytes
from gpugauge.status.model import GpuStatus, ProcessStatus, Status
from gpugauge.status.problem import KINDS, problem
from gpugauge.status.processes import level
from gpugauge.status.words import state_words
from gpugauge.terminal.columns import cells
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import Process
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import STATES
from gpugauge.verdict.estimate import variants
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.shares import LANE_BYTES_PER_SECOND
from gpugauge.wire.messages import JOB_VARIABLES
from gpugauge.wire.record import PHASES
from gpugauge.workload.launch import launch_of
from gpugauge.workload.processfiles import starts_hook
from gpugauge.workload.procfs import Procfs
from qa.worlds.trees import proc

ANN, TERMINAL = 1000, 34816
# Those of /etc/shells on Debian, Alpine and macOS, and two newer ones.
SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "ash", "busybox", "nu", "xonsh")
# Options with a value, from the manuals of bash, ksh and zsh.
WITH_VALUE = (("--rcfile", "a"), ("--init-file", "a"), ("-O", "extglob"), ("+O", "extglob"), ("-o", "vi"), ("+o", "vi"))
KERNELS = ("ipykernel_launcher", "ipykernel", "colab_kernel_launcher")
PHASE_NAMES = {
    "training": "train fit warmup",
    "evaluating": "Eval evaluation val valid validate validation validating test",
    "checkpointing": "checkpoint save saving",
    "compiling": "compile compilation",
    "loading": "load data",
    "generating": "generate generation rollout sampling",
    "other": "demo",
}


def started_by(folder: Path, argv: tuple[str, ...], *programs: tuple[str, ...], job_control: bool) -> set[str]:
    """Return the launches of programs that one process of a terminal starts. A shell with job control starts each in a
    process group of its own.
    """
    made = proc(folder)
    made.process(2, ["sshd: ann"], uid=ANN, comm="sshd")
    made.process(3, argv, parent=2, uid=ANN, comm=Path(argv[0]).name[:15], session=3, terminal=TERMINAL)
    for pid, program in enumerate(programs, 10):
        group = 0 if job_control else 3
        made.process(pid, program, parent=3, uid=ANN, session=3, terminal=TERMINAL, group=group)
    found = (launch_of(Procfs(str(made.root)), 10 + place, ANN) for place in range(len(programs)))
    return {launch.name.rpartition("-")[0] for launch in found}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_no_launch_but_its_script_is(shell: str, tmp_path: Path) -> None:
    programs = (("python", "a.py"), ("python", "b.py"))

    assert started_by(tmp_path / "1", (shell,), *programs, job_control=True) == {"a.py", "b.py"}
    assert started_by(tmp_path / "2", (shell, "./run.sh", "--fast"), *programs, job_control=False) == {"run.sh"}


@pytest.mark.parametrize("option", WITH_VALUE)
def test_the_value_of_an_option_of_a_shell_is_no_script(option: tuple[str, str], tmp_path: Path) -> None:
    assert started_by(tmp_path, ("bash", *option), ("python", "a.py"), job_control=True) == {"a.py"}


@pytest.mark.parametrize("kernel", [*(("-m", name) for name in KERNELS), ("/opt/colab_kernel_launcher.py",)])
def test_each_kernel_of_a_notebook_is_a_launch(kernel: tuple[str, ...], tmp_path: Path) -> None:
    program = ("python", *kernel, "-f", "k.json")

    assert started_by(tmp_path, ("jupyter-lab",), program, job_control=False) == {kernel[-1].rpartition("/")[2]}


@pytest.mark.parametrize(("value", "off"), [*((each, True) for each in ("0", "false", "No ", "OFF")), ("1", False)])
def test_hook_and_daemon_know_the_same_values_of_the_switch(
    value: str, off: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = {"PYTHONPATH": "/venv/lib/gpugauge/hook/bootstrap"}
    proc(tmp_path).process(10, environ={**path, SWITCH_VARIABLE: value})
    monkeypatch.setenv(SWITCH_VARIABLE, value)

    assert switched_off() == off
    assert starts_hook(Procfs(str(tmp_path)), 10) != off


def test_files_of_a_process_that_may_hang_are_read_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those for which fs/proc/base.c and task_mmu.c take the lock of the memory, or that of an exec.
    names = {"cmdline", "environ", "io", "maps"}
    proc(tmp_path).process(10)
    made, in_time = Procfs(str(tmp_path)), dict[str, bytes]()
    for name in (*names, "stat", "status", "statm", "cgroup", "comm"):
        (tmp_path / "10" / name).write_text("1\n")
        monkeypatch.setattr(made._in_time, "read", lambda work, _, name=name: in_time.setdefault(name, work()))
        assert (made.read(10, name), made.read_once(10, name)) == (b"1\n", b"1\n")

    assert in_time.keys() == names


def test_phases_by_their_common_names() -> None:
    expected = {name: phase for phase, names in PHASE_NAMES.items() for name in (phase, *names.split())}

    assert {name: PHASES[phase_index(f" {name} ")] for name in expected} == expected


def test_each_value_of_the_driver_is_in_a_part_of_the_readings() -> None:
    fields = {field for call in CALLS if call.group != "processes" for field in call.fields}
    fields |= {row.field for row in FIELD_VALUES} | {*PROFILING, "samples_gpu", "events", "processes", "nvlink_active"}
    modes = {field for field in fields if part_of(field) == MODES}

    assert modes == {
        *("accounting_mode", "compute_mode", "display_active", "persistence_mode"),
        *("compute_capability", "core_count", "gpm_supported", "local_cpus", "numa_node"),
    }
    assert {part_of(field) for field in fields} == PARTS.keys()
    assert {name: words for name, words in PARTS.items() if words != name} == {
        "utilization": "load",
        "samples": "load samples",
        "ecc": "memory errors",
        "pcie": "PCIe link",
        "nvlink": "NVLinks",
        "mig": "MIG devices",
        "profiling": "SM counters",
    }


def test_each_error_of_a_link_that_the_driver_counts_is_judged() -> None:
    counted = {row.key for row in FIELD_VALUES if row.field == "nvlink_errors"}
    not_judged = {"receive_remote", "receive_general", "link_integrity", "transmit_discard", "recovery_successful"}

    assert counted - not_judged == {*NVLINK_NEVER, *NVLINK_CORRECTED}


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_a_variable_that_hides_each_gpu(name: str, tmp_path: Path) -> None:
    finding = machine.visible_devices(case(tmp_path, NO_DRIVER, environ={name: "-1"}, pci={"AMD": 1}))

    assert finding.found == f"{name} hides every GPU"


def test_problems_of_the_gpu_of_a_process_are_in_its_answer() -> None:
    gpu, own = GpuStatus(uuid="GPU-a"), Process(ProcessStatus(process="aa"), [GpuStatus(uuid="GPU-a")])
    found = tuple(problem(kind, "GPU 0", "", gpus=(gpu.uuid,)) for kind in KINDS)
    status = Status(answer="", timestamp=0.0, version=None, gpus=(gpu,), problems=found)
    of_programs = {"no_gpu", "wasted", "on_cpu", "slowed", "waits", "unjudged", "unused", "collector", "hook"}

    assert {each.kind for each in StatusReply(own, status).gpu_problems()} == set(KINDS) - of_programs


# By state: the level of a process in it without a cause and with one, and what a terminal says of it.
OF_STATES = {
    "starting": ("none", "poor", "starting"),
    "compiling": ("none", "poor", "compiling"),
    "training": ("good", "poor", "training"),
    "evaluating": ("good", "poor", "evaluating"),
    "checkpointing": ("good", "poor", "writing a checkpoint"),
    "generating": ("good", "poor", "generating"),
    "stalled": ("bad", "bad", "stalled: no step and no batch"),
    "training_on_cpu": ("good", "bad", "training on the CPU"),
    "held_idle": ("none", "poor", "idle: it holds a GPU and runs nothing on it"),
    "not_training": ("none", "poor", "not training"),
    "unknown": ("none", "poor", "its state is not known yet"),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_level_and_its_words(state: str) -> None:
    without, limited, words = OF_STATES[state]
    known = ProcessStatus(process="aa", hook=True, state=state, state_words=state_words(state, "training", hook=True))
    screen = process_screen(Process(known), 0.0, 200, colour=False)
    limit = screen[screen.index("What limits it") + 1].strip()

    assert level(state, None, "training", wasted=False) == without
    assert level(state, "transfer", "training", wasted=False) == limited
    assert words in screen[1].split(" · ")
    judged = without == "good" and state != "training_on_cpu"
    assert (limit == "no cause is large enough to be named") == judged


SHARES = ("data_wait", "data_wait_exposed", "local_work", "cpu_throttled", "memory_pressure", "asleep")
MEASURED = Evidence(60.0)._replace(**dict.fromkeys(SHARES, 0.1))  # type: ignore[arg-type]  # the names of its fields
MEASURED_DEVICE = DeviceEvidence(0.5, own_busy=0.4, sm_active=0.3, clock=0.8, transfer=0.1)


@pytest.mark.parametrize("name", SHARES)
def test_each_share_of_a_process_is_varied_for_the_bounds_of_a_gain(name: str) -> None:
    without = MEASURED._replace(**{name: None})  # type: ignore[arg-type]  # the names of its fields

    assert pairs(without, MEASURED_DEVICE) == pairs(MEASURED, MEASURED_DEVICE) - 1


@pytest.mark.parametrize("names", ["busy own_busy", "own_busy", "sm_active", "clock", "transfer"])
def test_each_share_of_a_gpu_is_varied_for_the_bounds_of_a_gain(names: str) -> None:
    without = MEASURED_DEVICE._replace(**dict.fromkeys(names.split()))  # type: ignore[arg-type]  # names of its fields

    assert pairs(MEASURED, without) == pairs(MEASURED, MEASURED_DEVICE) - len(names.split())


def test_the_rate_of_a_lane_is_that_of_its_generation() -> None:
    # Transfers a second and the encoding of PCI Express 1.0 to 6.0, whose flits have 242 bytes of 256 for data.
    made = {1: 2.5 * 0.8, 2: 5 * 0.8, **{n: 2**n * 128 / 130 for n in (3, 4, 5)}, 6: 64 * 242 / 256}

    assert {n: pytest.approx(1e9 * rate / 8, rel=2e-3) for n, rate in made.items()} == LANE_BYTES_PER_SECOND


def pairs(process: Evidence, device: DeviceEvidence) -> int:
    return sum(bool(pair) for pair in variants(process, device))


# By class, as in NVIDIA's catalogue of Xid errors: codes and ranges of codes.
XIDS = {
    "application": "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
    "ignorable": "37-38 43-44 63 66-67 92-93 106-107 121 137 141 152-153 157 160-161",
    "reset": "46 62 64 95 109-110 119-120 136 140 143 155-156 158",
    "workflow": "48 74 144-150",
    "node": "54 79 151",
    "recovery": "154",
    "follow_up": "45",
    "other": "78 142 159 167-169 171-172",
}
# Those after which a driver sets its recovery action, by the same catalogue.
LINKED_XIDS = "48 62-64 74 79 94-95 110 120 136 144-150 155-156 158"


def codes(text: str) -> set[int]:
    ends = [[int(end) for end in part.split("-")] for part in text.split()]
    return {code for first, *last in ends for code in range(first, (last or [first])[0] + 1)}


def test_xid_errors_by_class() -> None:
    assert [xid for name, text in XIDS.items() for xid in codes(text) if xid_labels(xid)[1] != name] == []
    assert {name: codes(text) for name, text in XIDS.items()} == XID_CLASSES
    assert codes(LINKED_XIDS) == LINKED
    assert LASTING - codes(XIDS["reset"]) - codes(XIDS["workflow"]) - codes(XIDS["node"]) == {63, 94}


def test_codes_and_reasons_are_those_of_the_binding() -> None:
    errors = {value: name for name, value in vars(pynvml).items() if re.fullmatch("NVML_ERROR_[A-Z_]+", name)}
    # A code of virtual GPUs that no call of ours returns.
    own = {value: name.removeprefix("NVML_ERROR_").lower() for value, name in errors.items() if "VGPU" not in name}
    own |= {pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library_mismatch"}
    slowdowns = {
        re.sub("([A-Z])", r"_\1", name.removeprefix("nvmlClocksEventReason")).lower().removeprefix("_"): value
        for name, value in vars(pynvml).items()
        if name.startswith("nvmlClocksEventReason") and name[21:] not in {"None", "All", "UserDefinedClocks"}
    }

    assert {code: name for code, name in RETURN_CODES.items() if name and name != f"code_{code}"} == own
    assert CODES - {"implausible_value", "worker_error", "too_slow"} == {*own.values()}
    assert CLOCKS_EVENT_REASONS.items() >= slowdowns.items()
    assert CLOCKS_EVENT_REASONS.keys() - slowdowns.keys() == {"board_limit", "reliability"}  # newer than the binding


# Reasons with words of their own: of a driver that is down, and of a GPU.
OF_DRIVER = (
    *("library_not_found", "driver_not_loaded", "no_permission", "library_mismatch", "gpu_not_found", "timeout"),
    *("worker_unkillable", "worker_failed", "worker_error", "unknown", "failed", "stuck"),
)
OF_GPU = (
    *("gpu_is_lost", "reset_required", "hangs", "crashes_worker", "not_enumerated", "removed", "driver_down"),
    *("remembered", "no_permission", "no_uuid", "worker_error", "too_slow", "unknown", "stale"),
)


def test_each_reason_has_words_of_its_own() -> None:
    advised = {reason for reason in {*CODES, *OF_DRIVER, *OF_GPU, "released"} if known_advice(reason, NVIDIA)}
    of_driver = {reason for reason in advised if not driver_words(reason).endswith(f"reports {reason}")}
    of_gpu = [reason for reason in OF_GPU if f"returns {reason}" in down_phrase(reason)]

    assert of_driver == {*OF_DRIVER, "released"}
    assert {*OF_DRIVER, "released", "implausible_value"} == advised
    assert [driver_words(reason) for reason in ("off", "starting", "released")] == [
        *("off (driver.mode)", "is being opened", "released on request"),
    ]
    assert of_gpu == []


@pytest.mark.parametrize(
    ("text", "width"),
    [("a", 1), ("é", 1), ("e\u0301", 1), ("\u0e01\u0e31", 1), ("a\u20dd", 1), ("a\u200d", 1), ("中", 2), ("\uff41", 2)],
)
def test_cells_of_a_text(text: str, width: int) -> None:
    assert cells(text) == width


def strings_outside_rows(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module that are neither in a row of the catalogue nor a docstring."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"gauge", "counter", "histogram"}:
            inside |= {id(below) for below in ast.walk(node)}
        elif isinstance(node, ast.Expr):
            inside.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def test_few_names_of_metrics_stand_outside_rows_and_rules() -> None:
    names = {row.name for row in catalog.metrics()}
    names |= {f"{name}_{part}" for name in names for part in ("sum", "count", "bucket")}
    modules = [path for path in SOURCE.rglob("*.py") if path.parent.name != "rules"]
    found = [
        (path.name, name)
        for path in modules
        for text in strings_outside_rows(ast.parse(path.read_text()))
        for name in names.intersection(re.findall(r"\w+", text))
    ]

    # What no GPU of a vendor has, two starts that a scrape reads, and names in texts for people.
    assert len(found) <= 30, sorted(found)
    assert ("amd.py", "gpu_cuda_cores") in found


# By part of a step: the settings that change it, those that change it most first.
CHANGES = {
    "data": ("loader workers", "loader batch size", "loader prefetch"),
    "peers": ("sharding", "parallel", "backend", "world size", "GPUs"),
    "rest": (
        *("autocast", "matmul dtype", "tf32 matmul", "compiled", "GPU", "deterministic", "cudnn benchmark"),
        *("loader batch size", "sharding", "parallel", "allocator", "alloc conf", "grad scaler", "batch device"),
        *("torch", "cuda"),
    ),
    "compiling": ("compiled", "torch"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_settings_that_explain_a_slower_step_in_their_order(part: str) -> None:
    one, two = (Report.__new__(Report) for _ in range(2))
    object.__setattr__(one, "step_seconds", 1.0)
    object.__setattr__(two, "step_seconds", 2.0)
    for each in (one, two):
        object.__setattr__(each, "steps", 100)
        object.__setattr__(each, "samples", None)
    for first, second in pairwise(CHANGES[part]):
        # Fewer workers load longer.
        pairs = {name: ("2", "1") if name == "loader workers" else ("1", "2") for name in (second, first)}
        changed, listed = pairs, ", ".join(f"{name} {' → '.join(pairs[name])}" for name in (first, second))
        assert _answer(one, two, {part: (0.5, 1.5)}, changed)[-1] == f"The change that explains it: {listed}."


def test_words_of_yaml_and_units_of_sizes() -> None:
    words = {"": None, "~": None, "Null": None, "True": True, "FALSE": False, "yes": "yes", "0x1f": 31, "1e3": 1000.0}
    units = {"B": 2, "KB": 2000, "MB": 2 * 10**6, "GB": 2 * 10**9, "KiB": 2048, "MiB": 2 << 20, "GiB": 2 << 30}
    size = TypeAdapter(Bytes).validate_python

    assert [repr(parse(f"a: {word}", "f").tree["a"]) for word in words] == [repr(value) for value in words.values()]
    assert {unit: size(f"2{unit}") for unit in units} == {unit: size(f"2.0 {unit}") for unit in units} == units


def test_each_architecture_that_trains_has_its_cores() -> None:
    """By NVIDIA's guide: 64 in GP100, V100, Xavier, Turing and A100, 128 in all others from Maxwell on."""
    few, many = "6.0 7.0 7.2 7.5 8.0", "5.0 5.2 5.3 6.1 6.2 8.6 8.7 8.9 9.0 10.0 10.3 12.0 12.1"
    for cores, names in ((64, few), (128, many)):
        for name in names.split():
            capability = tuple(map(int, name.split(".")))
            assert multiprocessors({"compute_capability": capability, "core_count": 10 * cores}) == {
                "multiprocessors": 10
            }


def test_what_a_report_reads_is_kept_by_a_daemon() -> None:
    """Without a Prometheus a report has the names that exposition/trainings.py keeps, and knows the build otherwise."""
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE / "report").glob("*.py")]
    read = [getattr(trainings, name) for text in texts for name in re.findall(r"names\.([A-Z_]+)", text)]
    names = {name for each in read for name in ((each,) if isinstance(each, str) else each)}

    assert len(names) > 40
    assert {re.sub("_(sum|count)$", "", name) for name in names} - trainings._NAMES == {trainings.BUILD}


def test_the_variables_of_a_job_are_those_of_the_documentation() -> None:
    """They are read, and the hook sends them."""
    text = (SOURCE.parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", text.partition("- the identity of the run: ")[2].partition("- whether the hook")[0])
    run, job = listed[: listed.index("GPUGAUGE_JOB")], listed[listed.index("GPUGAUGE_JOB") :]

    assert set(JOB_VARIABLES) == {*job, "TORCHELASTIC_RUN_ID"}
    others = [name for name in run[:-1] if "RUN_ID" in name]
    assert ("GPUGAUGE_RUN_ID", "TORCHELASTIC_RUN_ID", *others) == hook_process()._RUN_IDS


def test_a_replaced_gpu_has_its_own_allocation() -> None:
    given = {"GPU-0": (TRAINER,), "GPU-1": (SERVER,)}
    collector = AllocationCollector(FixedWorkloads(given, {"kubelet": True}))
    first, second = (exported(collector, replace(device(0), uuid=f"GPU-{n}")) for n in (0, 1))

    assert [{labels[0] for labels in found["gpu_allocation_info"]} for found in (first, second)] == [
        {"GPU-0"},
        {"GPU-1"},
    ]


def test_ranks_of_which_none_is_late_are_in_their_order() -> None:
    rows = table_of_ranks(with_ranks(*({"rank": rank} for rank in (2, 0, 3, 1))))

    assert [row[0].split()[0] for row in rows] == ["0", "1", "2", "3"]


def test_the_hook_sends_each_id_of_a_run_that_is_exported() -> None:
    assert hook_process()._runs().keys() == {*session_rows._RUNS} - {"tensorboard_dir"}


def hook_process() -> Any:
    need_module("torch")
    return importlib.import_module("gpugauge.hook.process")


def test_each_reason_of_a_loader_has_a_change_or_a_number_of_workers() -> None:
    numbers = {loaders.TOO_FEW_WORKERS, loaders.TRAINING_THREAD, loaders.STORAGE, loaders.SLOW_BATCHES}

    assert loaders.CHANGES.keys() == loaders.REASONS.keys() - numbers


def test_the_vendors_have_words_for_the_same() -> None:
    assert [vendor.words.keys() ^ NVIDIA.words.keys() for vendor in VENDORS] == [set()] * len(VENDORS)


def test_a_forked_child_counts_from_zero() -> None:
    record = Record()
    recorder, fresh = Recorder(record), Recorder(record)
    for part in (recorder.ends, recorder.waits, recorder.gone):
        part.append(1)
    recorder.work.samples, recorder.work.unknown = 7, {1}
    recorder.clear()

    assert [len(part) for part in (recorder.ends, recorder.waits, recorder.gone)] == [0, 0, 0]
    assert (recorder.work.samples, recorder.work.unknown) == (fresh.work.samples, fresh.work.unknown)


@pytest.mark.parametrize("cause", ["data_loading", "host_bound"])
def test_a_report_has_all_mistakes_beside_its_change(cause: str) -> None:
    change = Change(cause, "do this; then that", 0.5, None, None)
    made = SimpleNamespace(change=change, mistakes=["no pinned memory", "twice"], devices=1, steps=1)

    lines = report_render._change(made).lines  # type: ignore[arg-type]  # a part of a report
    assert [line for line in lines if line.startswith("Also: ")] == ["Also: no pinned memory.", "Also: twice."]
