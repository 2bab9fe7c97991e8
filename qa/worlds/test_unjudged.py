"""GPUs with a low load under programs without the hook: who they are is said of each GPU and once of the node."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any
from unittest.mock import Mock

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.status.words import HOOK_ADVICE, HOOK_COMMAND
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import NOW
from qa.worlds.scraped import snapshot_of


def node(users: list[list[tuple[str, str]]], load: float | None = 0.48) -> dict[str, Any]:
    """Return the status of a node by GPU with the program and the user of each process, at a moment of no load."""
    found = [
        (f"p{gpu}-{number}", f"GPU-{gpu}", program, user)
        for gpu, here in enumerate(users)
        for number, (program, user) in enumerate(here)
    ]
    uuids = [{"uuid": f"GPU-{gpu}"} for gpu in range(len(users))]
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", *((uuid, 1) for uuid in uuids)),
        family("gpu_info", *((uuid | {"index": str(number)}, 1) for number, uuid in enumerate(uuids))),
        family("gpu_utilization_ratio", *((uuid, 0.0) for uuid in uuids)),
        family("gpu_process_memory_used_bytes", *(({"process": p, "uuid": uuid}, 1 << 30) for p, uuid, *_ in found)),
        family(
            "gpu_process_host_info",
            *(
                (
                    {
                        "process": process,
                        "pid": str(4000 + number),
                        "torch_build": "cuda",
                        "workload_command": program,
                        "workload_user": user,
                    },
                    1,
                )
                for number, (process, _, program, user) in enumerate(found)
            ),
        ),
    )
    history = Mock(wraps=History(), load=lambda *_: load)
    facts: dict[str, Any] = status(snapshot_of(NOW, 100.0, (Section("all", families),), {}), history)
    return facts | {"host": "node-7"}


OUTSIDE = "what is seen from outside: gpugauge doctor 4000; "


def test_eight_processes_on_each_of_eight_gpus() -> None:
    facts = node([[("train.py", "1000")] * 8] * 8)

    assert facts["answer"] == ("8 of 8 GPUs at a low load: train.py ×64 of user 1000, 8 on each GPU, without the hook")
    (problem,) = facts["problems"]
    assert problem["subject"] == "GPUs 0-7"
    assert problem["advice"] == f"check that 8 programs on one GPU are meant to share it; {OUTSIDE}{HOOK_ADVICE}"
    assert problem["text"] == "busy 48 % of the time, low is below 50 %; the cause is not known without the hook"
    assert {gpu["summary"] for gpu in facts["gpus"]} == {"8 processes of user 1000: train.py, without the hook"}
    assert "next time" in problem["advice"]
    young = node([[("train.py", "1000")] * 8] * 8, load=None)
    assert (young["problems"], "load" in young["answer"]) == ([], False)


@seeds(range(40))
def test_counts_of_drawn_nodes(seed: int) -> None:
    dice = random.Random(seed)
    pairs = [(f"{dice.choice('abc')}.py", dice.choice(["ann", "1000", ""])) for _ in range(dice.randint(1, 4))]
    users = [[dice.choice(pairs) for _ in range(dice.randint(1, 5))] for _ in range(dice.randint(1, 4))]
    if dice.random() < 0.3:
        users = [users[0]] * len(users)
    load = dice.choice((0.29, 0.48, 0.496, 0.4999))
    facts = node(users, load)
    assert facts["problems"][0]["text"].startswith(
        f"busy {math.floor(100 * load + 1e-6)} % of the time, low is below 50 %"
    )

    total = Counter(pair for here in users for pair in here)
    (first, most), *others = total.most_common()
    clause = facts["answer"].partition(" at a low load: ")[2]
    if all(count < most for _, count in others):
        times = f" ×{most}" if most > 1 else ""
        assert clause.startswith(f"{first[0]}{times}{f' of user {first[1]}' if first[1] else ''}")
        even = len(users) > 1 and len({here.count(first) for here in users}) == 1
        assert (f"{users[0].count(first)} on each GPU" in clause.partition(";")[0]) == even
    for gpu, here in zip(facts["gpus"], users, strict=True):
        assert gpu["summary"].startswith(f"{len(here)} process{'es' if len(here) > 1 else ''}")
        owners = {user for _, user in here}
        said = f" of {len(owners)} owners:" if len(owners) > 1 else f" of user {here[0][1]}:" if here[0][1] else ":"
        assert said in gpu["summary"]
        programs = {program for program, _ in here}
        assert sum(program in gpu["summary"] for program in programs) == min(2, len(programs))
    shown = decoded(Status, facts)
    text, html = table(shown, False, NOW, 200), "".join(content(shown, None, NO_LINKS))
    for view in (text, html):
        assert "training" not in view
        assert view.count("the cause is not known") == 1
    assert " ".join(text.split()).count(HOOK_COMMAND) == 1
    assert html.count(f'data-copy="{HOOK_COMMAND}"') == html.count('id="no-hook"') == 1
