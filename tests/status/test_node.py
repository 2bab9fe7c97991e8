import json
import re
from dataclasses import replace
from functools import partial

import pytest
from qa.worlds.nodes import draw
from qa.worlds.reading import Reader
from qa.worlds.scraped import snapshot_of

from gpugauge.faults.judged import Judged
from gpugauge.faults.table import GpuHealth, ailments
from gpugauge.metric import Family, HistogramValue
from gpugauge.snapshot import Health, Section
from gpugauge.status.history import History
from gpugauge.status.model import GpuStatus, Problem, ProcessStatus, Status
from gpugauge.status.node import build
from gpugauge.status.problem import KINDS
from gpugauge.terminal.screen import problem_lines
from gpugauge.terminal.table import table
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from gpugauge.web.page.routes import PATH, status_route
from gpugauge.web.server import Request
from gpugauge.workload.identity import Workload
from tests.serving import answer
from tests.simulation import status
from tests.status.reference import meanings
from tests.status.statusfacts import ROWS, family, snapshot

VIEW = partial(status, history=History())
REQUEST = Request("GET", PATH, "", {}, b"", "127.0.0.1")


def test_devices_by_index_with_their_processes() -> None:
    node = status(snapshot(), History())

    first, second = node["gpus"]
    assert (first["index"], first["uuid"], first["load"], first["temperature_celsius"]) == (0, "GPU-a", 0.93, 64)
    assert (first["load_5m"], first["processes_hidden"]) == (None, 3)
    (process,) = first["processes"]
    assert (process["pid"], process["command"], process["torch_build"]) == (4001, "train.py", "cuda")
    assert process["workload"]["pod"] == "trainer-0"
    assert (process["memory_used_bytes"], process["started"]) == (40 << 30, 1.7e9 - 7300)
    assert (second["processes"], second["allocation"]) == ([], "allocated")
    assert second["allocated_to"] == [{"kind": "pod", "namespace": "web", "pod": "idle-7"}]
    assert second["temperature_celsius"] is None
    (process,) = node["without_gpu"]
    assert (process["pid"], process["torch_build"], process["workload"]["user"]) == (77, "cpu", "ann")
    assert (node["version"], node["simulated"], node["failing_collectors"]) == ("9.9", True, {"host": "no"})
    assert node["driver"] == {"up": True, "reason": "ok", "needed": True, "state_words": "up"}


def test_reason_of_a_device_that_is_down() -> None:
    base = snapshot(up=0)
    down = family("gpu_down_reason", ({"uuid": "GPU-a", "reason": "hangs"}, 1))
    node = status(snapshot_of(1.7e9, 100.0, (*base.sections, Section("device", (down,)))), History())

    assert [(gpu["uuid"], gpu["up"], gpu["down_reason"]) for gpu in node["gpus"]] == [
        ("GPU-a", False, "hangs"),
        ("GPU-b", True, None),
    ]


def test_a_launcher_is_no_training() -> None:
    launchers = ("torchrun", "torch.distributed.run", "accelerate", "accelerate.commands.launch")
    for command in (*launchers, "torchrun.py", "train.py"):
        who = {"process": "cc", "pid": "77", "torch_build": "cuda", "workload_command": command}
        host = family("gpu_process_host_info", (who, 1))
        facts = status(snapshot_of(1.7e9, 1.0, (Section("all", (host,)),)), History())
        assert [process["pid"] for process in facts["without_gpu"]] == [77] * (command not in launchers), command


def test_parts_of_the_steps_and_causes_that_are_not_decided() -> None:
    parts, causes = {"data": 0.7, "rest": 0.3}, {"host_bound": 0.2, "data_loading": 0.5}
    verdict = (
        family("training_state", ({"process": "aa", "state": "training"}, 1)),
        family("torch_process_info", ({"process": "aa", "pid": "4001"}, 1)),
        family("training_step_share_ratio", *(({"process": "aa", "part": p}, n) for p, n in parts.items())),
        family("training_verdict_info", ({"process": "aa", "undecidable": "data_loading,host_bound"}, 1)),
        family("training_limited_by", ({"process": "aa", "cause": "unknown"}, 1)),
        family("training_limited_by_ratio", *(({"process": "aa", "cause": c}, n) for c, n in causes.items())),
    )
    history = History()
    for second in (0, 5, 60):
        history.feed(snapshot_of(1.7e9 + second, second, (Section("all", verdict if second != 5 else ()),)))
    found = status(snapshot_of(1.7e9 + 60, 60.0, (Section("all", verdict),)), history)
    (process,), (problem,) = found["without_gpu"], (p for p in found["problems"] if p["processes"])

    assert (process["trouble_since"], problem["since_words"]) == (1.7e9, "since 2023-11-14 22:13 UTC")
    assert process["step_shares"] == parts
    assert process["undecidable"] == ["data_loading", "host_bound"]
    assert (process["level"], process["lost_ratio"]) == ("bad", 0.7)
    assert process["evidence"] == f"{CAUSES['data_loading'].evidence}; {CAUSES['host_bound'].evidence}"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("driver_not_loaded", "modprobe nvidia"), ("starting", None), ("code_4711", None)],
)
def test_advice_for_a_driver_that_is_down(reason: str, advice: str | None) -> None:
    down = family("gpugauge_driver_up", ({"reason": reason}, 0))

    driver = status(snapshot_of(1.7e9, 1.0, (Section("exporter", (down,)),)), History())["driver"]

    assert (driver["up"], driver["reason"], "advice" in driver) == (False, reason, advice is not None)
    assert (advice or "") in driver.get("advice", "")


def test_error_of_a_collector_is_one_short_line() -> None:
    wrong = Health(False, 0.1, 0, 3, "OSError: no\n  such file " + "x" * 500)

    node = status(replace(snapshot(), health={"host": wrong, "device": Health(True, 0.1, 1.7e9, 0)}), History())

    assert node["failing_collectors"].keys() == {"host"}
    assert node["failing_collectors"]["host"].startswith("OSError: no such file xxx")
    assert len(node["failing_collectors"]["host"]) == 200


def test_names_in_the_meanings_of_the_fields_are_those_of_the_code() -> None:
    def named(kind: type, field: str) -> set[str]:
        return set(re.findall(r"`(\w+)`", meanings(kind)[field]))

    levels = {gpu.level for node in map(draw, range(30)) for gpu in build(node.snapshot(), node.history()).gpus}
    assert named(Problem, "kind") == set(KINDS)
    assert named(ProcessStatus, "workload") == set(Workload._fields)
    assert named(Status, "level") == named(GpuStatus, "level") == named(ProcessStatus, "level") == levels


def test_who_used_a_gpu_that_is_lost() -> None:
    history = History()
    before = snapshot()
    history.feed(before)
    lost = family("gpu_up", ({"uuid": "GPU-b"}, 1), ({"uuid": "GPU-a"}, 0))
    other = [f for f in before.sections[0].families if f.metric.name == "gpu_info"]
    gone = snapshot_of(1.7e9 + 60, 160.0, (Section("all", (lost, *other)),))
    history.feed(gone)

    first, second = status(gone, history)["gpus"]
    assert first["last_seen"] == 1.7e9
    assert [(p["pid"], p["command"], p["alive"]) for p in first["last_processes"]] == [(4001, "train.py", False)]
    assert "last_processes" not in second
    (process,) = first["last_processes"]
    assert (process["memory_used_bytes"], process["started"]) == (40 << 30, 1.7e9 - 7300)
    used = "last used by train.py (pid 4001, pod ml/trainer-0, user 1000, not seen now)"
    assert used in table(build(gone, history), False, 1.7e9, 120)


def test_since_when_a_fault_is_there_in_every_view() -> None:
    at, history, before = 1.7e9 - 600, History(), snapshot()
    history.feed(before)
    lost = family("gpu_up", ({"uuid": "GPU-b"}, 1), ({"uuid": "GPU-a"}, 0))
    other = [f for f in before.sections[0].families if f.metric.name in {"gpu_info", "gpugauge_driver_up"}]
    reset, narrow = ailments(GpuHealth("gpu_reset", lanes=(8, 16), was_narrow=True))
    both = reset._replace(since=at), narrow._replace(since=at - 86_400, earlier=True)
    faults = Judged("faults", (), {"GPU-b": both})
    found = build(snapshot_of(1.7e9 + 60, 160.0, (Section("all", (lost, *other)), faults)), history)

    expected = [
        "GPU 0: down: every call returns an unknown error, since 2023-11-14 22:13 UTC",
        "GPU 1: the driver requires a reset of the GPU after an error, since 2023-11-14 22:03 UTC",
        "GPU 1: its PCIe link has 8 of 16 lanes: copies between host and GPU take longer, at least "
        "since 2023-11-13 22:03 UTC",
    ]
    page = Reader("".join(content(replace(found, gpus=()), None, NO_LINKS))).text
    for text in (page, table(found, False, 1.7e9, 200)):
        assert [words for words in expected if words not in text] == []
    top = " ".join(line for problem in found.problems for line, _ in problem_lines(problem, 200))
    assert [words for line in expected for words in re.split(", (?=since|at least)", line) if words not in top] == []


def test_state_and_cause_of_a_process_on_a_lost_gpu_stay() -> None:
    history, alive = History(), family("gpu_process_host_info", ({"process": "bb", "pid": "7"}, 1))
    users = [{"process": process, "uuid": "GPU-a"} for process in ("aa", "bb")]
    verdict = (
        family("training_state", *(({"process": user["process"], "state": "training"}, 1) for user in users)),
        family("training_limited_by", *(({"process": user["process"], "cause": "transfer"}, 1) for user in users)),
    )
    here = family("gpu_process_memory_used_bytes", *((user, 1 << 30) for user in users))
    known = family("gpu_process_info", *(({"process": p, "pid": n}, 1) for p, n in (("aa", "6"), ("bb", "7"))))
    up = family("gpu_up", ({"uuid": "GPU-a"}, 1))
    history.feed(snapshot_of(1.7e9, 100.0, (Section("all", (up, here, known, alive, *verdict)),)))
    stalled = family("training_state", ({"process": "bb", "state": "stalled"}, 1))
    lost = (
        family("gpu_up", ({"uuid": "GPU-a"}, 0)),
        family("gpu_down_reason", ({"uuid": "GPU-a", "reason": "gpu_is_lost"}, 1)),
    )
    driver = family("gpugauge_driver_up", ({"reason": "ok"}, 1))
    gone = status(snapshot_of(1.7e9 + 60, 160.0, (Section("all", (driver, *lost, alive, stalled)),)), history)

    (gpu,) = gone["gpus"]
    ended, running = gpu["last_processes"]
    assert (ended["alive"], ended["limited_by"], ended["state"]) == (False, "transfer", "training")
    assert (running["alive"], running["limited_by"], running["state"]) == (True, None, "stalled")
    assert running["memory_used_bytes"] == 1 << 30
    down, trouble = gone["problems"]
    assert (down["kind"], down["runbook"], down["detail"]) == (
        "gpu_down",
        "GpuLost",
        "last used by pid 6 (not seen now), pid 7",
    )
    assert "see the repair; replace it" in down["advice"]
    assert (trouble["processes"], trouble["text"], trouble["runbook"]) == (["bb"], "is stalled", "TrainingStalled")


def test_time_of_a_step_in_the_last_minutes() -> None:
    row = ROWS["torch_step_duration_seconds"]
    history, known = History(), family("torch_process_info", ({"process": "aa"}, 1))
    for at in range(0, 600, 5):
        steps = 10 * at + 1 if at < 300 else 3001 + (at - 300)  # 0.1 s, then 1 s each
        counts = (0,) * len(row.buckets) + (steps,)
        total = 0.1 * min(steps, 3001) + max(0, steps - 3001)
        duration = Family(row, ((("aa",), HistogramValue(counts, total)),))
        history.feed(snapshot_of(1.7e9 + at, float(at), (Section("all", (duration, known)),)))

    assert history.step_seconds("aa", 60) == pytest.approx(1.0)
    assert history.step_seconds("aa", 3600) == pytest.approx((300 + 295) / 3295, rel=0.01)
    assert history.step_seconds("bb", 60) is None


def test_release_has_its_end() -> None:
    until = family("gpugauge_driver_released_until_timestamp_seconds", ({}, 1.7e9))
    released = family("gpugauge_driver_up", ({"reason": "released"}, 0))
    node = status(snapshot_of(1.7e9, 1.0, (Section("exporter", (released, until)),)), History())

    driver = {"up": False, "reason": "released", "needed": True, "state_words": "released on request"}
    assert node["driver"] == driver | {"released_until": 1.7e9}
    assert node["gpus"] == []


def test_load_over_five_minutes_comes_from_the_history() -> None:
    class FixedHistory(History):
        def load(self, uuid: str, seconds: float) -> float | None:
            return 0.5 if seconds == 300 else None

    assert status(snapshot(), FixedHistory())["gpus"][0]["load_5m"] == 0.5


def test_load_over_ten_minutes_is_rounded() -> None:
    class FixedHistory(History):
        def loads(self, uuid: str) -> list[tuple[float, float | None]]:
            return [(5.0049, None), (0.0, 1 / 3)] if uuid == "GPU-a" else []

    first, second = status(snapshot(), FixedHistory())["gpus"]
    assert (first["load_10m"], second["load_10m"]) == ([[5.0, None], [0.0, 0.333]], [])


def test_route_answers_in_json() -> None:
    reply = answer(status_route(snapshot, VIEW), REQUEST)

    assert reply.status == 200
    assert len(json.loads(reply.body)["gpus"]) == 2


def test_route_without_a_fresh_snapshot() -> None:
    assert answer(status_route(lambda: None, VIEW), REQUEST).status == 503


@pytest.mark.parametrize("ago", [0.0, 7.0, 59.0, 61.0, 3600.0])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_process_that_ended_is_not_in_use_and_one_that_runs_on_has_no_hook(ago: float, on_gpu: bool) -> None:
    memory = [({"process": "aa", "uuid": "GPU-a"}, 1 << 30)] if on_gpu else []
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("torch_process_info", ({"process": "aa", "pid": "7"}, 1)),
        family("gpu_process_host_info", ({"process": "aa", "pid": "7", "torch_build": "cuda"}, 1)),
        family("gpu_process_memory_used_bytes", *memory),
        family("torch_phase", ({"process": "aa", "phase": "training"}, 1)),
        family("training_end_timestamp_seconds", ({"process": "aa"}, 1.7e9 - ago)),
    )
    facts = status(snapshot_of(1.7e9, 1.0, (Section("all", families),)), History())
    (gpu,) = facts["gpus"]
    ended = ago < 60
    (process,) = gpu["processes"] if on_gpu else facts["ended" if ended else "without_gpu"]

    assert (process["state_words"], process["hook"]) == (("ended", True) if ended else ("no hook", False))
    assert gpu["state_words"] == ("in use" if on_gpu and not ended else "free")
    assert ("well and free" in facts["answer"]) == (ended or not on_gpu)
    assert process["phase"] is None
