from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpugauge.settings.kinds import ConfigError
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import SHIPPED, list_scenarios, load_scenario, parse_scenario

FOLDER = Path(__file__).parents[3] / "src/gpugauge/simulator/scenarios"


def test_list_has_every_shipped_file() -> None:
    listed = list_scenarios()

    assert [name for name, _ in listed] == list(SHIPPED)
    files = {path.stem for path in FOLDER.glob("*/*.yaml")}
    assert set(SHIPPED) == files, f"SHIPPED in simulator/scenario/load.py and the files differ: {set(SHIPPED) ^ files}"
    assert all("\n" not in description for _, description in listed)


def test_shipped_scenarios_are_the_same_after_json() -> None:
    for name in SHIPPED:
        simulation = load_scenario(name).simulation()
        sent = json.loads(json.dumps(simulation))
        assert sent == simulation, name
        assert World(sent).devices, name


def test_sizes_of_shipped_scenarios() -> None:
    worlds = {name: World(load_scenario(name).simulation()) for name in ("node", "large", "bench-24", "bench-64")}
    sizes = {name: (len(w.devices), len(w.processes)) for name, w in worlds.items()}

    assert sizes == {"node": (8, 7), "large": (64, 64), "bench-24": (8, 24), "bench-64": (8, 64)}


def test_mig_devices_have_separate_loads() -> None:
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
    (
        "- 1",
        "f.yaml:1: expected `key: value`; the keys of a scenario are name, host, description, driver, gpus, "
        "processes, faults",
    ),
    ("", "f.yaml:1: description: must be set"),
    ("gpus: {model: h100}", "f.yaml:1: description: must be set"),
    ("description: d\ngpu: {model: h100}", "f.yaml:2: gpu: unknown key; did you mean gpus?"),
    (
        "description: d\ngpus:\n  - count: 1\n    modle: h100",
        "f.yaml:4: gpus[0].modle: unknown key; did you mean gpus[0].model?",
    ),
    ("description: d\nmemory: 1", "f.yaml:2: memory: unknown key; did you mean gpus.memory?"),
    ("description: d\ngpus: {model: h1000}", "f.yaml:2: gpus.model: unknown model h1000; did you mean h100?"),
    ("description: d\ngpus: {model: h100, count: two}", "f.yaml:2: gpus.count: must be a whole number, not 'two'"),
    (HEAD + "processes:\n  - pid: 1\n    gpus: [2]", "f.yaml:5: processes[0].gpus: there is no gpu 2, the last is 1"),
    (
        HEAD + "processes:\n  - {pid: 1, gpus: all, per_gpu: 1}\n  - {pid: 2, gpus: [0]}",
        "f.yaml:5: processes[1].pid: pid 2 is used by a process above",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], memory: 90GiB}]",
        "f.yaml:3: processes[0].memory: processes on gpu 0 hold 92160 of 81008 MiB",
    ),
    (
        HEAD + f"processes: [{{pid: 1, gpus: [0], memory: {'9' * 400}GiB}}]",
        f"f.yaml:3: processes[0].memory: {'9' * 400}GiB is not a size; write a number of bytes, or a size like 40GiB",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], memory: lots}]",
        "f.yaml:3: processes[0].memory: lots is not a size; write a number of bytes, or a size like 40GiB",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], per_gpu: 3, load: 0.5}]",
        "f.yaml:3: processes[0].load: the loads of gpu 0 add up to 1.5, more than 1",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: 0.5, pipeline: {}}]",
        "f.yaml:3: processes[0]: load follows from the pipeline",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], phases: {compiling: 9}}]",
        "f.yaml:3: processes[0]: phases and hook need a pipeline",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {kernel: 1}}]",
        "f.yaml:3: processes[0].pipeline.kernel: unknown key; did you mean processes[0].pipeline.kernels?",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {copy: fast}}]",
        "f.yaml:3: processes[0].pipeline.copy: must be a number, not 'fast'",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {peer: 2.0}}]",
        "f.yaml:3: processes[0].pipeline: peer is the step of another rank: it needs a world_size of at least 2",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {other: 0.5}}]",
        "f.yaml:3: processes[0].pipeline: other: no other process is on gpu 0",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {}}, {pid: 2, gpus: [0], load: 0.5}]",
        "f.yaml:3: processes[0]: the loads of gpu 0 add up to 1.5, more than 1",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], pipeline: {}, phases: {evaluating: 9}}]",
        "f.yaml:3: processes[0].phases: every and evaluating or checkpointing must be given together",
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
        "f.yaml:8: processes[0].load.perod: unknown key; did you mean processes[0].load.period?",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: sine, period: 0}}]",
        "f.yaml:3: processes[0].load.period: must be greater than or equal to 0.001, not 0",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: points, points: [[1, 0], [1, 1]]}}]",
        "f.yaml:3: processes[0].load.points: the seconds of points must increase, by a microsecond or more",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: points, points: [[0, 0.1], [5.0e-324, 0.4]]}}]",
        "f.yaml:3: processes[0].load.points: the seconds of points must increase, by a microsecond or more",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: points, points: [[5.0e-324, 0.4]], repeat: true}}]",
        "f.yaml:3: processes[0].load.points: repeated points must end at second 0.001 or later",
    ),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: points, points: [[-1.0e+308, 0], [1.0e+308, 1]]}}]",
        "f.yaml:3: processes[0].load.points: the seconds of points must be from -1e9 to 1e9",
    ),
    (
        HEAD + 'processes: [{pid: 1, gpus: [0], command: "it\'s"}]',
        "f.yaml:3: processes[0].command: not a shell command: no closing quotation",
    ),
    (HEAD + "processes: [{pid: 1, gpus: [0], start: 5, end: 4}]", "f.yaml:3: processes[0]: end must come after start"),
    (
        HEAD + "faults: [{call: nvmlDeviceGetPowerUse, code: 3}]",
        "f.yaml:3: faults[0].call: unknown NVML function nvmlDeviceGetPowerUse; did you mean nvmlDeviceGetPowerUsage?",
    ),
    (HEAD + "faults: [{gpu: 5, code: 3}]", "f.yaml:3: faults[0].gpu: there is no gpu 5, the last is 1"),
    (HEAD + "faults: [{gpu: GPU-x, code: 3}]", "f.yaml:3: faults[0].gpu: there is no gpu GPU-x, the last is 1"),
    (HEAD + "processes: [{pid: 1, gpus: [0, 0]}]", "f.yaml:3: processes[0]: gpus names a GPU twice"),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], start: .inf}]",
        "f.yaml:3: processes[0].start: must be a finite number, not inf",
    ),
    (
        "description: d\ngpus: {model: t4, idle_watts: 80}",
        "f.yaml:2: gpus: idle_watts must be less than power_limit_watts",
    ),
    ("description: d\ngpus: {model: h100, back_at: 5, lost_at: 7}", "f.yaml:2: gpus: back_at must come after lost_at"),
    ("description: d\ngpus: {model: t4, memory: 1MiB}", "f.yaml:2: gpus: memory_reserved is more than memory"),
    ("description: d\nname: " + "9" * 5000, "f.yaml:2: a number has too many digits"),
    ("description: d\ndescription: e", "f.yaml:2: description is set twice, first in f.yaml:1"),
    (HEAD + "processes: [{pid: 1, gpus: [0], load: {level: 1}}]", "f.yaml:3: processes[0].load: 'shape' must be set"),
    (
        HEAD + "processes: [{pid: 1, gpus: [0], load: {shape: squar}}]",
        "f.yaml:3: processes[0].load: 'shape' must be one of 'constant', 'square', 'sine', 'points', not 'squar'",
    ),
    ("[" * 5000, "f.yaml: nested too deeply"),
    (
        HEAD + "faults: [{gpu: 1}]",
        "f.yaml:3: faults[0]: a fault has exactly one of code, delay, hang, crash, value, leak, stat",
    ),
    (
        HEAD + "faults: [{code: gpu_lost}]",
        "f.yaml:3: faults[0].code: unknown NVML code gpu_lost; did you mean gpu_is_lost?",
    ),
    (
        "description: d\ngpus: {model: h100, mig: [{profile: 1g}]}",
        "f.yaml:2: gpus.mig[0]: 1g is not a profile like 1g.10gb",
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
        "f.yaml:2: gpus.lacks[0]: unknown feature nvlnk; did you mean nvlink?",
    ),
    (
        "description: d\ngpus: {model: h100, health: {throttling: [{reason: heat}]}}",
        "f.yaml:2: gpus.health.throttling[0].reason: unknown reason heat; valid: applications_clocks_setting, "
        "sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, "
        "display_clock_setting, board_limit, reliability",
    ),
    ("description: !!bool 5\n", "f.yaml:1: tags are not used; put a value that begins with ! in quotes"),
    (
        'description: d\ngpus: {model: a100, mig: [{profile: "\\ud800"}]}',
        "f.yaml:2: \\ud800 to \\udfff alone are no characters",
    ),
    (
        "description: d\ngpus: {model: a100, mig: [{profile: 1g.10gb}]}\n"
        "processes: [{pid: 4, gpus: [0], instance: 7, memory: 4096, load: {shape: sine, period: 8}}]",
        "f.yaml:3: processes[0].instance: gpu 0 has MIG, so that instance must be one of: 0",
    ),
    (HEAD + "faults: [{member: timeStamp, code: 3}]", "f.yaml:3: faults[0]: member needs a value"),
    (
        HEAD + "processes: [{pid: 0, gpus: [0]}, {pid: x, gpus: [0]}]",
        "f.yaml:3: processes[0].pid: must be greater than or equal to 1, not 0\n"
        "f.yaml:3: processes[1].pid: must be a whole number, not 'x'",
    ),
]


def test_mistakes_are_named() -> None:
    for text, message in ERRORS:
        with pytest.raises(ConfigError) as raised:
            parse_scenario(text, "f.yaml", "f")
        assert str(raised.value) == message


def test_sentence_about_a_long_value_is_short() -> None:
    value = "x"
    for _ in range(4):
        value = f"[{','.join([value] * 9)}]"

    with pytest.raises(ConfigError) as raised:
        parse_scenario(f"description: {value}", "f.yaml", "f")

    assert str(raised.value).startswith("f.yaml:1: description: must be text, not [[[['x', 'x'")
    assert len(str(raised.value)) < 200


def test_anchors_and_aliases_are_refused() -> None:
    for text in ("description: &a x", "description: d\ngpus: [*a]", "&a {description: d}"):
        with pytest.raises(ConfigError, match=r"^f\.yaml:\d: anchors and aliases are not used"):
            parse_scenario(text, "f.yaml", "f")


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"there is no scenario 'nod'; did you mean node\?"):
        load_scenario("nod")


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: No such file or directory"):
        load_scenario(str(tmp_path / "no.yaml"))


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_scenario(str(path))
