"""The parts of a status, each by a table or drawn: what is absent, words of ranks, answers, loads, and troubles."""

from __future__ import annotations

import random
import re
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import product

from tests.collectors.training.test_training import SESSION
from tests.drawn import cases, seeds

from gpugauge.driver.api import Device, DeviceReading, DriverView, MigReading
from gpugauge.node.node import Judged, Load, Node, Use, Verdict
from gpugauge.sessions.inquiry import ELSEWHERE, ENDED, SILENT, WAITING
from gpugauge.snapshot import Snapshot
from gpugauge.status import model
from gpugauge.status.answer import answer
from gpugauge.status.gpu_problems import programs_words
from gpugauge.status.history import History
from gpugauge.status.model import Frame, GpuStatus, ProcessStatus, Standstill, Status
from gpugauge.status.node import build
from gpugauge.status.processes import level
from gpugauge.status.standstill import place, words
from gpugauge.verdict.causes import STATES
from gpugauge.web.page.render import ranks

NOW = 1.7e9
# All other fields of a status that another version does not send are None, false, 0 or empty.
NOT_EMPTY = {
    ("Frame", "own"): True,
    ("GpuStatus", "up"): True,
    ("DriverStatus", "reason"): "unknown",
    ("DriverStatus", "needed"): True,
    **{(name, "level"): "none" for name in ("ProcessStatus", "GpuStatus", "Status")},
}


def test_what_another_version_does_not_send_is_absent() -> None:
    own = [kind for kind in vars(model).values() if isinstance(kind, type) and kind.__module__ == model.__name__]
    kinds = [kind for kind in own if is_dataclass(kind)]
    found = {}
    for kind in kinds:
        for field in fields(kind):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            if made is not MISSING and made and not is_dataclass(made):
                found[kind.__name__, field.name] = made
    assert found == NOT_EMPTY
    assert len(kinds) > 10


@cases("many", [False, True])
def test_what_a_rank_does_is_one_phrase(many: bool) -> None:
    torch, own = (
        Frame(file="/x/torch/nn.py", line=7, function="forward", own=False),
        Frame(file="/home/a/train.py", line=88, function="step"),
    )
    be, have, do, wait = ("are", "have", "do", "wait") if many else ("is", "has", "does", "waits")
    for stack, function, phase in product(
        [(), (torch,), (own, torch), (torch, own, torch)], [None, "all_reduce"], ["", "saving"]
    ):
        frame = next((frame for frame in (own, torch) if frame in stack), None)
        at = {own: " at train.py:88", torch: " at nn.py:7", None: ""}[frame]

        def said(position: str, stopped: bool = False) -> str:
            found = Standstill(position=position, function=function, since=NOW, stack=stack, stopped=stopped)  # noqa: B023  (called in this round)
            assert f" at {place(found)}" == at or not at  # noqa: B023  (called in this round)
            return words(found, phase, many=many) if many else words(found, phase)  # noqa: B023  (called in this round)

        assert said(WAITING) == f"{wait} {f'in {function}' if function else 'for other ranks'}{at}"
        inside = f" in {frame.function}" if frame else ""
        assert said(ELSEWHERE) == f"{be}{f' {phase}' if phase else ''}{inside}{at}"
        assert said(SILENT) == f"{do} not answer"
        assert said(ENDED) == f"{have} ended"
        assert {said(p, stopped=True) for p in (WAITING, ELSEWHERE, SILENT)} == {f"{be} stopped by a signal"}


@seeds(range(40))
def test_programs_without_the_hook_are_counted(seed: int) -> None:
    chance = random.Random(seed)
    wanted = {f"prog{n}.py": chance.randint(1, 4) for n in range(chance.randint(1, 2))}
    gpus = []
    for g in range(chance.randint(1, 3)):
        each = [(name, i) for name, count in wanted.items() for i in range(count) if g == 0 or chance.random() < 0.5]
        gpus.append(
            GpuStatus(
                uuid=f"GPU-{g}",
                processes=tuple(
                    ProcessStatus(
                        process=f"{name}{i}{g}",
                        command=name,
                        role="training",
                        state_words="no hook",
                        workload={"user": "7"},
                    )
                    for name, i in each
                ),
            )
        )
    found = programs_words(gpus)
    for name in wanted:
        counts = [sum(p.command == name for p in gpu.processes) for gpu in gpus]
        times = f"{name} ×{sum(counts)}" if sum(counts) > 1 else name
        even = len(gpus) > 1 and len(set(counts)) == 1
        (said,) = (part for part in found.split("; ") if part.startswith(name))
        assert said == f"{times} of user 7" + (f", {counts[0]} on each GPU" if even else ""), found


@cases("count", [1, 2, 3, 8])
def test_gpus_without_a_problem_are_counted(count: int) -> None:
    for used, hidden in product(range(count + 1), [0, 1]):
        gpus = tuple(
            GpuStatus(
                uuid=f"GPU-{i}",
                load_5m=0.25 if i < hidden * (count + 1) // 2 else None,
                processes=(
                    ProcessStatus(
                        process=f"p{i}",
                        role="training",
                        hook=not hidden,
                        state_words="no hook" if hidden else "training",
                    ),
                )
                if i < used
                else (),
            )
            for i in range(count)
        )
        said = answer(Status(answer="", timestamp=NOW, version="1", gpus=gpus, driver=model.DriverStatus(up=True)), [])
        whole = "Both" if count == 2 else f"All {count}"
        if not hidden or not used:
            free = f"The GPU is well and {'in use' if used else 'free'}"
            assert said == (free if count == 1 else f"{whole} GPUs are well: {used} in use, {count - used} free")
            continue
        known = (count + 1) // 2
        some = "" if known == count else f" (known of {known} GPU{'s' if known > 1 else ''})"
        of = f"{used} of {count} GPU{'s' if count > 1 else ''} in use"
        assert said.startswith(f"No problem found, but not all is known: {of}, 25 % busy on average{some};"), said
        facts = Status(answer="", timestamp=NOW, version="1", gpus=tuple(replace(gpu, load_5m=None) for gpu in gpus))
        assert f": {of};" in answer(facts, []), answer(facts, [])


@cases("state", [*STATES, None])
def test_how_well_a_process_uses_what_it_holds(state: str | None) -> None:
    for cause, role, wasted in product([None, "transfer"], [None, "display", "training"], [False, True]):
        found = level(state, cause, role, wasted=wasted)
        if role == "display" or state is None:
            wanted = "none"
        elif state == "training_on_cpu":
            wanted = "bad" if cause else "poor" if wasted else "good"
        elif state == "stalled" or (wasted and (cause or state == "held_idle")):
            wanted = "bad"
        else:
            busy = state in {"training", "evaluating", "generating", "checkpointing"}
            wanted = "poor" if cause else "good" if busy else "none"
        assert found == wanted, (state, cause, role, wasted)


@seeds(range(40))
def test_loads_and_troubles_of_drawn_points(seed: int) -> None:
    """A load is known between two points of which both parts are known; trouble goes on over gaps of a minute."""
    chance, history = random.Random(seed), History()
    busy = observed = 0.0
    points: list[tuple[float | None, float | None]] = []
    began, last = None, -1e9
    for number in range(30):
        now = 5.0 * number
        busy, observed = busy + chance.choice([0.0, 2.0, 5.0]), observed + chance.choice([1.0, 5.0])
        known = chance.random() < 0.8, chance.random() < 0.8
        points.append((busy if known[0] else None, observed if known[1] else None))
        judged = {}
        if trouble := (number * 7 + seed) % 19 < 4:
            verdict = chance.choice([Verdict("stalled", "inside"), Verdict("training", "inside", {}, "transfer")])
            judged["p"] = Judged(verdict)
            began, last = (began if began is not None and now - last <= 60.0 else NOW + now), now
        else:
            judged["p"] = Judged(Verdict("training", "inside"))
        node = Node(timestamp=NOW + now, monotonic=now, sessions={"p": SESSION}, judged=judged)
        node.loads = {"GPU-0": Load(*points[-1])}
        node.uses = {("p", "GPU-0"): Use(1, busy)}
        history.feed(Snapshot(NOW + now, now, (), {}, node))
        assert history.troubled_since("p") == (began if now - last <= 60.0 else None), (now, trouble)
    for number, (age, share) in enumerate(history.loads("GPU-0")):
        assert age == 5.0 * (len(points) - 1 - number)
        parts = [*points[number - 1], *points[number]] if number else [None]
        if None in parts:
            assert share is None
        else:
            b0, o0, b1, o1 = (part or 0.0 for part in parts)
            assert share == (min(1.0, (b1 - b0) / (o1 - o0)) if o1 - o0 >= 2.5 else None)


@seeds(range(20))
def test_a_mig_device_has_its_own_figures(seed: int) -> None:
    chance = random.Random(seed)
    percent, used = chance.choice([None, 0.0, 37.0, 100.0]), chance.choice([None, 0, 5 << 30])
    mig = MigReading("MIG-a", 1, 0, "1g.10gb", None, 10 << 30, used, None, sm_active_percent=percent)
    device = Device("GPU-a", True, "ok", DeviceReading(mig_instances=(mig,)), {})
    node = Node(timestamp=NOW, monotonic=100.0)
    node.driver, node.devices = DriverView(True, "ok", devices=(device,)), (device,)
    (gpu,) = build(Snapshot(NOW, 100.0, (), {}, node), History()).gpus
    (found,) = gpu.mig
    assert (found.uuid, found.profile, found.gpu_instance, found.compute_instance) == ("MIG-a", "1g.10gb", "1", "0")
    assert found.load == (None if percent is None else percent / 100)
    assert (found.memory_used_bytes, found.memory_total_bytes) == (used, 10 << 30)
    busy = bool(percent) or bool(used)
    assert found.state_words == ("in use" if busy else "free" if percent is not None or used is not None else "")


def test_each_figure_of_a_rank_stands_below_its_heading() -> None:
    stack = (Frame(file="train.py", line=88, function="step"),)
    still = Standstill(position=WAITING, function="all_reduce", since=NOW - 65.0, stack=stack)
    made = [
        ProcessStatus(process=f"p{rank}", rank=rank, world_size=2, steps=7 - 3 * rank, phase="training", standstill=at)
        for rank, at in enumerate([still, replace(still, behind=True)])
    ]
    page = ranks(Status(answer="", timestamp=NOW, version="1", without_gpu=tuple(made)))
    headings = re.findall(r'<th scope="col">(.*?)</th>', page)
    late, first = (
        dict(zip(headings, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row), strict=True))
        for row in re.findall(r'<tr>(<th scope="row">.*?)</tr>', page)
    )
    assert (late["Rank"], late["Step"], late["Phase"], late["No progress for"]) == ("1", "4", "training", "1.1 min")
    assert "all_reduce" in late["Waits in"]
    assert "train.py:88" in late["At"]
    assert "wait for it" in late["Behind by"]
    assert "3 steps" in late["Behind by"]
    assert (first["Rank"], first["Step"]) == ("0", "7")
