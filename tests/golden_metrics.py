"""The whole /metrics of a scenario at one instant, made without processes, threads or a clock."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpugauge import wire
from gpugauge.app import make_collectors
from gpugauge.driver.api import DriverFacts, DriverView, Group, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.simulated.procfs import ProcTree
from gpugauge.driver.simulated.scenario import Scenario
from gpugauge.driver.worker import Service
from gpugauge.exposition import Exposition
from gpugauge.sampler import Sampler
from gpugauge.sessions import Counters, Session, Sessions
from gpugauge.workload.procfs import Procfs

START = 1_790_000_010.0  # Unix time
GROUPS: tuple[Group, ...] = ("static", "fast", "samples", "profiling", "normal", "slow", "processes", "mig")
LIMITS: dict[Group, float] = dict.fromkeys(GROUPS, 60.0)
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
# What depends on the machine that runs the test.
_VARYING = (
    (re.compile(r"(gpugauge_(?:collector_duration|driver_call_longest)_seconds\{[^}]*\}) .*"), r"\1 0.001"),
    (re.compile(r"(gpugauge_driver_call_seconds_total\{[^}]*\}) .*"), r"\1 0.001"),
    (re.compile(r"(gpugauge_(?:cpu|resident|open|start)_?[a-z_]*\{[^}]*\}) .*"), r"\1 1.0"),
    (re.compile(r'python="[^"]*"'), 'python="3.x"'),
)


class Ear(Sessions):
    """Sessions that were heard already."""

    def __init__(self, *sessions: Session) -> None:
        self._heard = sessions
        self._told = Counters({"malformed": 1, "rate": 0}, {"finished": 1})

    def view(self) -> tuple[Session, ...]:
        return self._heard

    def counters(self) -> Counters:
        return self._told


def training(number: int, ended_at: float | None = None) -> Session:
    """Return one of two ranks that train on a card each."""
    log2 = tuple(500 if i == 16 else 20 if i == 17 else 0 for i in range(wire.LOG2_BUCKETS))
    facts = {"command": "train.py", "python": "3.11.7", "torch": "2.13.0", "cuda": "12.8"}
    facts |= {"rank": str(number), "local_rank": str(number), "world_size": "2", "run_id": "night-42"}
    session = f"{number:032x}"
    snap = wire.Snap(
        session,
        7,
        steps=wire.Progress(520, 41.6, 1_790_000_050.0, log2),
        batches=wire.Progress(521, 3.2, 1_790_000_050.1, log2),
        parameters=(wire.Parameters(f"cuda:{number}", "torch.bfloat16", 148, 124_439_808, 248_879_616),),
        devices=(
            wire.Device(number, f"GPU-{number}", 3 << 30, 5 << 30, 6 << 30, 3 << 30, 1 << 28, retries=0, ooms=number),
        ),
        errors=0,
    )
    hello = wire.Hello(session, 1, 40 + number, 4026531836, 1_790_000_000.0, facts)
    return Session(hello, 0, 1000, 1_790_000_051.0, snap, ended_at, "finished" if ended_at else "")


def metrics(scenario: Scenario, folder: Path, seconds: int, *sessions: Session) -> dict[str, str]:
    """Return /metrics as it is `seconds` after the scenario began, in both formats, by format."""
    now = 0.0
    simulation = scenario.simulation() | {"start": {"monotonic": 0.0, "unix": START}}
    service, inventory = Service(lambda: now), Inventory(LIMITS)
    facts = DriverFacts(**_answer(service, "open", simulate=simulation).values["driver"])
    tree = ProcTree(folder, scenario)
    tree.update(0.0)
    node = Procfs(str(folder))
    exposition = Exposition(stale_after=1e9)
    replies: list[Reply] = []

    def news() -> tuple[DriverView, tuple[Reply, ...]]:
        heard, replies[:] = tuple(replies), []
        return DriverView(True, "ok", facts, inventory.devices(now), worker_starts=1), heard

    sampler = Sampler(make_collectors(node, Ear(*sessions), node), news, exposition.publish, 1.0)
    while now <= seconds:
        for index in range(facts.device_count):
            reply = _answer(service, "read", index=index, groups=list(GROUPS))
            inventory.apply(reply, now)
            replies.append(replace(reply, uuid=inventory.uuid(index) or "", received=now))
        sampler.tick(START + now, now)
        now += 2.0
    service.close()
    formats = {"text": None, "openmetrics": OPENMETRICS}
    return {name: _stable(exposition.respond(accept, None, now).body.decode()) for name, accept in formats.items()}


def _answer(service: Service, op: str, **arguments: Any) -> Reply:
    reply = service.answer({"id": 1, "op": op, **arguments})
    assert reply.failed is None or op == "read", reply
    return reply


def _stable(text: str) -> str:
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text
