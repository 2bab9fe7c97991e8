"""A training that has not reported yet is starting, where it may still report."""

from __future__ import annotations

import random

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.status.words import RUN_ADVICE
from gpugauge.terminal.table import table
from qa.worlds.nodes import NOW
from qa.worlds.scraped import snapshot_of


@seeds(range(40))
def test_no_hook_is_said_only_where_it_is_decided(seed: int) -> None:
    dice = random.Random(seed)
    hook, scanned, on_gpu, reports = (dice.random() < 0.5 for _ in range(4))
    age, state = dice.choice([None, 0.5, 10.0, 29.0, 31.0, 5000.0]), dice.choice(["unknown", "held_idle", None])
    if not scanned and not on_gpu and not reports:
        return  # nothing is known of it
    host = {
        "process": "p",
        "pid": "7",
        "torch_build": "cuda",
        "hook": "yes" if hook else "",
        "workload_command": "a.py",
    }
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_process_host_info", *([(host, 1)] if scanned else [])),
        family("gpu_process_memory_used_bytes", *([({"process": "p", "uuid": "GPU-a"}, 1 << 30)] if on_gpu else [])),
        family("gpu_process_info", *([({"process": "p", "pid": "7", "kind": "compute"}, 1)] if on_gpu else [])),
        family(
            "gpu_process_start_timestamp_seconds",
            *([({"process": "p"}, NOW - age)] if on_gpu and age is not None else []),
        ),
        family("torch_process_info", *([({"process": "p", "pid": "7"}, 1)] if reports else [])),
        family("training_state", *([({"process": "p", "state": state}, 1)] if state and not reports else [])),
    )
    facts = status(snapshot_of(NOW, 100.0, (Section("all", families),), {}), History())
    (process,) = facts["gpus"][0]["processes"] if on_gpu else facts["without_gpu"]

    young = on_gpu and age is not None and age < 30 and not scanned
    starting = not reports and ((hook and scanned) or young)
    said = " ".join(table(decoded(Status, facts), False, NOW, 200).split())
    assert process["starting"] == starting
    assert (process["judging_since"] is not None) == (starting or reports)
    if not reports and state != "held_idle":
        assert process["state_words"] == ("starting" if starting else "no hook")
        assert ("not judged yet" in facts["answer"]) == (starting and on_gpu)
    assert (RUN_ADVICE in said) == (process["state_words"] == "no hook")
    assert reports or (process["advice"] == RUN_ADVICE) == (process["state_words"] == "no hook")
