"""The verdict on simulated trainings, through the collectors: the planted cause is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from tests.simulation import BY_TURNS, OFTEN, RARELY, STEADY, Moment, moments, scenario

from gpugauge.simulator.scenario.load import Scenario, load_scenario
from qa.worlds.truth import true_cause

SECONDS = 76
# By planted cause: the pipeline, and the load of other processes on its GPU.
PLANTED = {
    "healthy": ("{}", ""),
    "healthy, small steps": ("{kernels: 0.004, host: 0.002, load: 0.006}", ""),
    "data_loading": ("{load: 2.0}", ""),
    "data_loading, in the training thread": ("{load: 0.3, workers: 0}", ""),
    "host_bound": ("{host: 0.3}", ""),
    "host_bound, waiting for the GPU": ("{host: 0.08, synchronises: true}", ""),
    "transfer": ("{copy: 0.12, pinned: false}", ""),
    "underfilled": ("{fill: 0.2}", ""),
    "precision_unused": ("{precision_unused: true, tensor: 0.0}", ""),
    "waiting_for_peers": ("{peer: 0.3, world_size: 8}", ""),
    "throttled": ("{clock: 0.5}", ""),
    "throttled, by a lowered limit": ("{clock: 0.6, throttle: power_cap}", ""),
    "contention": ("{other: 0.5}", "memory: 2GiB, load: 0.5"),
    "cpu_limited": ("{cpu_quota: 0.1, load: 0.3}", ""),
    "memory_swap_io": ("{paging: 0.9, load: 0.3}", ""),
    "memory_pressure": ("{retries: 1.0}", ""),
}


def planted(model: str = "h100") -> Scenario:
    """Return a machine with one GPU per training."""
    lines = [f"gpus: {{model: {model}, count: {len(PLANTED)}}}", "processes:"]
    for i, (pipeline, neighbour) in enumerate(PLANTED.values()):
        lines.append(f"  - {{pid: {100 + i}, gpus: [{i}], memory: 20GiB, cgroup: /job{i}, pipeline: {pipeline}}}")
        if neighbour:
            lines.append(f"  - {{pid: {900 + i}, gpus: [{i}], {neighbour}}}")
    return scenario("\n".join(lines))


def last(made: Scenario, folder: Path, seconds: float = SECONDS, steps: tuple[float, ...] = STEADY) -> Moment:
    *_, found = moments(made, folder, seconds, steps=steps)
    return found


def oracle(made: Scenario) -> Mapping[int, str | None]:
    return {job.pid: true_cause(job.pipeline) for job in made.processes if job.pipeline}


@pytest.fixture(scope="module")
def after_a_minute(tmp_path_factory: pytest.TempPathFactory) -> Moment:
    return last(planted(), tmp_path_factory.mktemp("proc"))


def verdicts(found: Moment) -> dict[str, tuple[str, str | None]]:
    """Return state and cause by planted cause."""
    return {name: (found.states[100 + i], found.causes[100 + i]) for i, name in enumerate(PLANTED)}


def test_verdict_names_the_planted_cause_and_that_of_the_oracle(after_a_minute: Moment) -> None:
    causes = {name: None if name.startswith("healthy") else name.partition(",")[0] for name in PLANTED}

    assert dict(zip(PLANTED, oracle(planted()).values(), strict=True)) == causes
    assert verdicts(after_a_minute) == {name: ("training", cause) for name, cause in causes.items()}


@pytest.mark.everything
def test_causes_on_gpus_of_amd(tmp_path: Path) -> None:
    """Without counters of multiprocessors, of PCIe and of the time of processes, four causes cannot be named."""
    found = last(planted("mi300x"), tmp_path, 96)
    causes = {name: None if name.startswith("healthy") else name.partition(",")[0] for name in PLANTED}
    causes |= dict.fromkeys(("underfilled", "precision_unused", "contention"), None) | {"transfer": "unknown"}

    assert verdicts(found) == {name: ("training", cause) for name, cause in causes.items()}


@pytest.mark.everything
def test_drawn_faults_are_named_on_gpus_of_amd_as_on_those_of_nvidia(tmp_path: Path) -> None:
    dice = random.Random(53)
    drawn: dict[str, Callable[[], str]] = {
        "data_loading": lambda: f"pipeline: {{load: {dice.uniform(0.8, 4.0):.2f}}}",
        "host_bound": lambda: f"pipeline: {{host: {dice.uniform(0.2, 0.6):.2f}}}",
        "throttled": lambda: f"pipeline: {{clock: {dice.uniform(0.35, 0.6):.2f}}}",
        "model_on_cpu": lambda: f"pipeline: {{kernels: {dice.uniform(0.5, 3.0):.2f}}}",
        "held_idle": lambda: "load: 0.0",
        "": lambda: f"pipeline: {{kernels: {dice.uniform(0.1, 0.4):.2f}}}",  # healthy
    }
    faults = 4 * list(drawn)
    lines = [
        f"  - {{pid: {100 + i}, gpus: [{i if fault != 'model_on_cpu' else ''}], memory: 20GiB, cgroup: /j{i}, "
        f"{drawn[fault]()}}}"
        for i, fault in enumerate(faults)
    ]
    expected = {
        "held_idle": ("held_idle", None),
        "model_on_cpu": ("training_on_cpu", "model_on_cpu"),
        "": ("training", None),
    }
    for model in ("mi300x", "h100"):
        text = "\n".join([f"gpus: {{model: {model}, count: {len(faults)}}}", "processes:", *lines])
        found = last(scenario(text), tmp_path / model, 96)
        pids = {process: int(pid) for process, pid, *_ in found.samples["gpu_process_host_info"]}
        states = {pids[p]: state for (p, state), on in found.samples["training_state"].items() if on and p in pids}
        wrong = {
            pid: (fault, (states | found.states).get(pid), found.causes.get(pid))
            for pid, fault in enumerate(faults, 100)
            if expected.get(fault, ("training", fault)) != ((states | found.states).get(pid), found.causes.get(pid))
        }
        assert not wrong, model


@pytest.mark.everything
@pytest.mark.parametrize("steps", [OFTEN, RARELY, BY_TURNS])
def test_cause_does_not_depend_on_the_interval_of_ticks(
    steps: tuple[float, ...], tmp_path: Path, after_a_minute: Moment
) -> None:
    assert verdicts(last(planted(), tmp_path, steps=steps)) == verdicts(after_a_minute)


@pytest.mark.everything
@pytest.mark.parametrize("steps", [OFTEN, RARELY, BY_TURNS])
def test_integrals_do_not_depend_on_the_interval_of_ticks(steps: tuple[float, ...], tmp_path: Path) -> None:
    verdicts: dict[float, float] = {}  # time of each verdict, and the seconds counted until then
    for moment in moments(scenario(RHYTHMS), tmp_path, 150, steps=steps):
        spent, held = (moment.samples.get(f"training_{of}_total", {}) for of in ("seconds", "gpu_held_seconds"))
        exported = {process: sum(v for (p, _), v in spent.items() if p == process) for (process,) in held}  # type: ignore[misc]  # labels of any length
        assert exported == pytest.approx({process: value for (process,), value in held.items()})  # a GPU each
        if max(exported.values(), default=0.0) > max(verdicts.values(), default=0.0):
            verdicts[moment.second] = max(exported.values())

    times = sorted(verdicts)
    # From the begin of the first process on; the sessions of the simulator change once a second.
    assert [verdicts[time] for time in times] == pytest.approx(times, abs=1.0)
    assert max(later - earlier for earlier, later in pairwise(times)) < 10.0
    assert min(later - earlier for earlier, later in pairwise(times)) >= 4.5


def test_session_has_the_label_of_the_listed_process(after_a_minute: Moment) -> None:
    inside = {process for process, *_ in after_a_minute.samples["torch_process_info"]}
    listed = {process for process, _ in after_a_minute.samples["gpu_process_memory_used_bytes"]}
    seen_from_outside = {process for process, *_ in after_a_minute.samples["gpu_process_host_info"]}

    assert len(inside) == len(PLANTED)
    assert inside < listed
    assert inside < seen_from_outside


@pytest.mark.everything
@pytest.mark.parametrize("name", ["healthy", "starved", "bottlenecks"])
def test_shipped_scenario_has_the_cause_of_the_oracle(name: str, tmp_path: Path) -> None:
    made = load_scenario(name)

    found = last(made, tmp_path)

    expected = {pid: cause for job_pid, cause in oracle(made).items() for pid in found.causes if pid == job_pid}
    assert {pid: found.causes[pid] for pid in expected} == expected
    assert set(expected) == set(oracle(made))


def test_unused_devices(tmp_path: Path) -> None:
    text = "gpus: {model: h100, count: 4}\nprocesses: [{pid: 7, gpus: all, works_on: [0], memory: 9GiB, pipeline: {}}]"

    found = last(scenario(text), tmp_path)

    assert (found.causes[7], found.shares[7]) == ("unused_gpus", {"unused_gpus": 0.75})


def test_training_without_a_device_has_its_model_on_the_cpu(tmp_path: Path) -> None:
    text = "gpus: {model: h100}\nprocesses: [{pid: 7, gpus: [], pipeline: {kernels: 2.0}}]"

    found = last(scenario(text), tmp_path, 30)

    assert (found.states[7], found.causes[7]) == ("training_on_cpu", "model_on_cpu")


RHYTHMS = """
gpus: {model: h100, count: 3}
processes:
  - {pid: 1, gpus: [0], memory: 9GiB, cgroup: /a, pipeline: {},
     phases: {compiling: 40, every: 100, evaluating: 30, checkpointing: 30}}
  - {pid: 2, gpus: [1], memory: 9GiB, cgroup: /b, pipeline: {}, phases: {stalled_at: 60}}
  - {pid: 3, gpus: [2], memory: 9GiB, cgroup: /c, pipeline: {}, start: 20, end: 60}
"""


@pytest.mark.everything
@pytest.mark.parametrize("steps", [STEADY, OFTEN, RARELY, BY_TURNS])
def test_states_follow_the_phases_and_pauses_are_not_lost_time(steps: tuple[float, ...], tmp_path: Path) -> None:
    exported: dict[int, dict[float, str]] = {1: {}, 2: {}, 3: {}}
    named = []
    for moment in moments(scenario(RHYTHMS), tmp_path, 210, stalled_seconds=35.0, steps=steps):
        for pid, state in moment.states.items():
            exported[pid][moment.second] = state
        named += [(moment.second, pid, cause) for pid, cause in moment.causes.items() if cause and pid != 2]

    def at(pid: int, second: float) -> str:
        return exported[pid][max(moment for moment in exported[pid] if moment <= second)]

    # A phase is exported once it has taken the larger part of the last 10 s.
    assert [at(1, second) for second in (38, 60, 100, 128, 160, 200)] == [
        *("compiling", "training", "evaluating", "checkpointing", "training", "evaluating")
    ]
    assert [at(2, second) for second in (40, 78, 100, 210)] == ["training", "training", "stalled", "stalled"]
    assert (at(3, 40), at(3, 70)) == ("training", "")
    assert named == []


def test_a_pipeline_ends_with_its_process(tmp_path: Path) -> None:
    *_, found = moments(scenario(RHYTHMS), tmp_path, 80)
    ended = {process for process, *_ in found.samples["training_end_timestamp_seconds"]}

    assert found.samples["gpugauge_trainings_ended_total"]["finished",] == 1
    assert len(ended) == 1
    assert found.samples["gpugauge_hook_sessions"][()] == 2
