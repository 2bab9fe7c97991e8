from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import SHIPPED, ScenarioError, list_scenarios, load_scenario, parse_scenario

FOLDER = Path(__file__).parents[3] / "src/gpugauge/simulator/scenarios"


def test_list_has_every_file_that_ships() -> None:
    listed = list_scenarios()

    assert [name for name, _ in listed] == list(SHIPPED)
    assert sorted(SHIPPED) == sorted(path.stem for path in FOLDER.glob("*/*.yaml"))
    assert all("\n" not in description for _, description in listed)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenario_survives_the_way_to_the_worker(name: str) -> None:
    simulation = load_scenario(name).simulation()
    sent = json.loads(json.dumps(simulation))

    assert sent == simulation
    assert World(sent).devices


def test_sizes_of_what_ships() -> None:
    worlds = {name: World(load_scenario(name).simulation()) for name in ("node", "large", "bench-24", "bench-64")}
    sizes = {name: (len(w.devices), len(w.processes)) for name, w in worlds.items()}

    assert sizes == {"node": (8, 7), "large": (64, 64), "bench-24": (8, 24), "bench-64": (8, 64)}


def test_rooms_of_mig_devices_are_told_apart() -> None:
    jobs = "processes: [{pid: 1, gpus: [0], instance: 0, load: 0.9}, {pid: 2, gpus: [0], instance: 1, load: 0.9}]"
    text = f"description: d\ngpus: {{model: h100, mig: [{{profile: 1g.10gb, count: 2}}]}}\n{jobs}"

    assert len(parse_scenario(text, "f.yaml", "f").processes) == 2


def test_scenario_begins_when_it_is_loaded() -> None:
    scenario = load_scenario("idle")

    assert scenario.simulation() == scenario.simulation()


def test_file_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("description: mine\ngpus: {model: t4}\n")

    assert load_scenario(str(path)).name == "mine"


HEAD = "description: d\ngpus: [{model: h100, count: 2}]\n"
ERRORS = [
    ("gpus: [", "f.yaml:1: not valid YAML: expected the node content, but found '<stream end>'"),
    ("- 1", "f.yaml:1: a scenario is a mapping with the keys description, gpus, processes, faults"),
    ("", "f.yaml:1: a scenario is a mapping with the keys description, gpus, processes, faults"),
    ("gpus: {model: h100}", "f.yaml:1: description: field required"),
    ("description: d\ngpu: {model: h100}", "f.yaml:1: unknown key gpu (did you mean gpus?)"),
    ("description: d\ngpus:\n  - {modle: h100}", "f.yaml:3: gpus[0]: unknown key modle (did you mean model?)"),
    (
        "description: d\ngpus: {model: h1000}",
        "f.yaml:2: gpus.model: unknown model h1000 (did you mean h100?)",
    ),
    (
        "description: d\ngpus: {model: h100, count: two}",
        "f.yaml:2: gpus.count: input should be a valid integer, not 'two'",
    ),
    (
        HEAD + "processes:\n  - pid: 1\n    gpus: [2]",
        "f.yaml:5: processes[0].gpus: there is no gpu 2, the last is 1",
    ),
    (
        HEAD + "processes:\n  - {pid: 1, gpus: all, per_gpu: 1}\n  - {pid: 2, gpus: [0]}",
        "f.yaml:5: processes[1].pid: pid 2 is taken by a process above",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], memory: 90GiB}]",
        "f.yaml:3: processes[0].memory: processes on gpu 0 hold 92160 of 81008 MiB",
    ),
    (
        HEAD + f"processes: [{{pid: 1, gpus: [0], memory: {'9' * 400}GiB}}]",
        f"f.yaml:3: processes[0].memory: {'9' * 400}GiB is no size, write bytes as a number or like 40GiB",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], memory: lots}]",
        "f.yaml:3: processes[0].memory: lots is no size, write bytes as a number or like 40GiB",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], per_gpu: 3, load: 0.5}]",
        "f.yaml:3: processes[0].load: shares of gpu 0 reach 1.5 in all, more than 1",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: 0.5, pipeline: {}}]",
        "f.yaml:3: processes[0]: load follows from the pipeline",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], phases: {compiling: 9}}]",
        "f.yaml:3: processes[0]: phases and hook belong to a training: they need a pipeline",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {kernel: 1}}]",
        "f.yaml:3: processes[0].pipeline: unknown key kernel (did you mean kernels?)",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {copy: fast}}]",
        "f.yaml:3: processes[0].pipeline.copy: input should be a valid number, not 'fast'",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {peer: 2.0}}]",
        "f.yaml:3: processes[0].pipeline: peer is a step of another rank: it needs a world_size of at least 2",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {other: 0.5}}]",
        "f.yaml:3: processes[0].pipeline: other: nobody else is on gpu 0",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {}}, {pid: 2, gpus: [0], load: 0.5}]",
        "f.yaml:3: processes[0]: shares of gpu 0 reach 1.5 in all, more than 1",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {}, phases: {evaluating: 9}}]",
        "f.yaml:3: processes[0].phases: every belongs to evaluating and checkpointing, and they to every",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {}, phases: {every: 9, evaluating: 9}}]",
        "f.yaml:3: processes[0].phases: evaluating and checkpointing leave no time to train in every period",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], works_on: [1]}]",
        "f.yaml:3: processes[0]: works_on names a GPU that is not in gpus",
    ),
    (
        HEAD + "processes:\n  - pid: 1\n    gpus: [0]\n    load:\n      shape: square\n      perod: 3",
        "f.yaml:6: processes[0].load: unknown key perod (did you mean period?)",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: sine, period: 0}}]",
        "f.yaml:3: processes[0].load.period: input should be greater than 0, not 0",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: constant, level: 0.9, noise: 0.2}}]",
        "f.yaml:3: processes[0].load: noise 0.2 takes the load out of 0 to 1",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: points, points: [[1, 0], [1, 1]]}}]",
        "f.yaml:3: processes[0].load.points: the seconds of points must rise",
    ),
    (
        HEAD + 'processes: [{pid: 1, gpus: [0], command: "it\'s"}]',
        "f.yaml:3: processes[0].command: not a shell command: no closing quotation",
    ),
    (HEAD + "processes: [{pid: 1, gpus: [0], start: 5, end: 4}]", "f.yaml:3: processes[0]: end must come after start"),
    (
        HEAD + "faults: [{call: nvmlDeviceGetPowerUse, code: 3}]",
        "f.yaml:3: faults[0].call: no NVML function in use is called nvmlDeviceGetPowerUse "
        "(did you mean nvmlDeviceGetPowerUsage?)",
    ),
    (HEAD + "faults: [{gpu: 5, code: 3}]", "f.yaml:3: faults[0].gpu: there is no gpu 5, the last is 1"),
    (HEAD + "faults: [{gpu: GPU-x, code: 3}]", "f.yaml:3: faults[0].gpu: there is no gpu GPU-x, the last is 1"),
    (HEAD + "processes: [{pid: 1, gpus: [0, 0]}]", "f.yaml:3: processes[0]: gpus names a GPU twice"),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], start: .inf}]",
        "f.yaml:3: processes[0].start: input should be a finite number, not inf",
    ),
    (
        "description: d\ngpus: {model: t4, idle_watts: 80}",
        "f.yaml:2: gpus: idle_watts must be less than power_limit_watts",
    ),
    (
        "description: d\ngpus: {model: h100, back_at: 5, lost_at: 7}",
        "f.yaml:2: gpus: back_at must come after lost_at",
    ),
    ("description: d\ngpus: {model: t4, memory: 1MiB}", "f.yaml:2: gpus: memory_reserved is more than memory"),
    ("description: 2026-99-99", "f.yaml: not valid YAML: month must be in 1..12"),
    ("[" * 5000, "f.yaml: nested too deeply"),
    (
        HEAD + "faults: [{gpu: 1}]",
        "f.yaml:3: faults[0]: a fault has exactly one of code, delay, hang, crash, value, leak, stat",
    ),
    (
        HEAD + "faults: [{code: gpu_lost}]",
        "f.yaml:3: faults[0].code: unknown NVML code gpu_lost (did you mean gpu_is_lost?)",
    ),
    (
        "description: d\ngpus: {model: h100, mig: [{profile: 1g}]}",
        "f.yaml:2: gpus.mig[0]: 1g is no profile like 1g.10gb",
    ),
    ("description: d\ngpus: {model: t4, mig: []}", "f.yaml:2: gpus: t4 has no MIG"),
    (
        "description: d\ngpus: {model: h100, mig: [{profile: 3g.40gb, count: 3}]}",
        "f.yaml:2: gpus: the MIG devices have 9 slices of 7",
    ),
    (
        "description: d\ngpus: {model: h100, mig: [{profile: 1g.10gb}]}\nprocesses: [{pid: 1, gpus: [0]}]",
        "f.yaml:3: processes[0]: gpu 0 has MIG, so that instance must be one of: 0",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], instance: 3}]",
        "f.yaml:3: processes[0].instance: gpu 0 has no MIG devices",
    ),
    (
        "description: d\ngpus: {model: h100, lacks: [nvlnk]}",
        "f.yaml:2: gpus.lacks[0]: unknown feature nvlnk (did you mean nvlink?)",
    ),
    (
        "description: d\ngpus: {model: h100, health: {throttling: [{reason: heat}]}}",
        "f.yaml:2: gpus.health.throttling[0].reason: input should be 'applications_clocks', 'sw_power_cap', "
        "'hw_slowdown', 'sync_boost', 'sw_thermal_slowdown', 'hw_thermal_slowdown', 'hw_power_brake_slowdown', "
        "'display_clocks', 'board_limit' or 'reliability', not 'heat'",
    ),
    (
        "description: !!bool 5\n",
        "f.yaml:1: not valid YAML: the value does not fit the tag before it, leave the tag out",
    ),
    (
        'description: d\ngpus: {model: a100, mig: [{profile: "\\ud800"}]}',
        "f.yaml:2: not valid YAML: \\ud800 to \\udfff alone are no characters",
    ),
    (
        "description: d\ngpus: {model: a100, mig: [{profile: 1g.10gb}]}\n"
        "processes: [{pid: 4, gpus: [0], instance: 7, memory: 4096, load: {shape: sine, period: 8}}]",
        "f.yaml:3: processes[0].instance: gpu 0 has MIG, so that instance must be one of: 0",
    ),
    (HEAD + "faults: [{member: timeStamp, code: 3}]", "f.yaml:3: faults[0]: member needs a value"),
    (
        HEAD + "processes: [{pid: 0, gpus: [0]}, {pid: x, gpus: [0]}]",
        "f.yaml:3: processes[0].pid: input should be greater than or equal to 1, not 0 (and 1 more)",
    ),
]


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=[message[:60] for _, message in ERRORS])
def test_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse_scenario(text, "f.yaml", "f")

    assert str(raised.value) == message


def test_message_about_lists_within_lists_is_short() -> None:
    lists = ["&a [x,x,x,x,x,x,x,x,x]"]
    lists += [f"&{new} [{','.join([f'*{old}'] * 9)}]" for old, new in pairwise("abcdefghij")]

    with pytest.raises(ScenarioError) as raised:
        parse_scenario(f"description: [{', '.join(lists)}]", "f.yaml", "f")

    assert len(str(raised.value)) < 2000


def test_unknown_name() -> None:
    with pytest.raises(ScenarioError, match=r"there is no scenario 'nod' \(did you mean node\?\)"):
        load_scenario("nod")


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no\.yaml: cannot be read: No such file or directory"):
        load_scenario(str(tmp_path / "no.yaml"))


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ScenarioError, match="is not UTF-8 text"):
        load_scenario(str(path))
