"""Narrow PCIe links, MIG devices and losses of about half, drawn: what every view states of them."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import groupby

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.faults.judged import Judged
from gpugauge.faults.table import GpuHealth, ailments
from gpugauge.metric import Family
from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.screen import gpu_details, gpu_lines
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.reading import Reader
from qa.worlds.scraped import snapshot_of

NOW = 1.7e9


def snapshot(*families: Family, at: float = 100.0) -> Snapshot:
    there = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_info", ({"uuid": "GPU-a", "index": "3", "name": "NVIDIA A100-SXM4-80GB"}, 1)),
    )
    return snapshot_of(NOW + at, at, (Section("all", (*there, *families)),), {})


def views(found: Snapshot, history: History | None = None) -> tuple[str, str]:
    """Return the text of `status` and that of the page, each in one line."""
    facts = status(found, history or History())
    page = Reader("".join(content(decoded(Status, facts), None, NO_LINKS)))
    return " ".join(table(decoded(Status, facts), False, NOW, 200).split()), " ".join(page.text.split())


@seeds(range(40))
def test_a_narrow_link_is_a_problem_under_load_only(seed: int) -> None:
    dice = random.Random(seed)
    most = dice.choice((4, 8, 16))
    width, load = dice.choice([lanes for lanes in (1, 2, 4, 8, 16) if lanes <= most]), dice.choice((0.0, 0.1, 0.3, 1.0))
    health = GpuHealth(lanes=(width, most), link_load=load)
    found = snapshot(family("gpu_utilization_ratio", ({"uuid": "GPU-a"}, load)))
    faults = Judged("faults", (), {"GPU-a": tuple(ailments(health))})

    narrow = width < most and load >= 0.2
    for text in views(replace(found, sections=(*found.sections, faults))):
        assert (f"GPU 3: its PCIe link has {width} of {most} lanes" in text) == narrow
        assert ("1 of 1 GPU with faults, GPU 3: narrow link" in text) == narrow


@seeds(range(40))
def test_mig_devices_have_names_of_their_own_and_a_reason_for_no_load(seed: int) -> None:
    dice = random.Random(seed)
    ids = dice.sample([(gi, ci) for gi in range(1, 14) for ci in (0, 1)], dice.randint(1, 7))
    devices = [(f"MIG-{n}", gi, ci, dice.choice((None, 0.4))) for n, (gi, ci) in enumerate(ids)]
    found = snapshot(
        family(
            "gpu_mig_info",
            *(
                (
                    {
                        "uuid": uuid,
                        "parent_uuid": "GPU-a",
                        "profile": "1g.10gb",
                        "gpu_instance": str(gi),
                        "compute_instance": str(ci),
                    },
                    1,
                )
                for uuid, gi, ci, _ in devices
            ),
        ),
        family("gpu_mig_sm_active_ratio", *(({"uuid": uuid}, load) for uuid, *_, load in devices if load is not None)),
    )

    shown = decoded(Status, status(found, History()))
    top = "\n".join(text for _, text, _ in gpu_lines(shown, 200)[1]), "\n".join(gpu_details(shown.gpus[0]))
    # nvidia-smi -L counts compute instances of each GPU instance from 0 on.
    names = {f"MIG 1g.10gb GI {gi}" + (f" CI {ci}" if ci else "") for _, gi, ci, _ in devices}
    for text in (*views(found), *top):
        assert set(re.findall(r"MIG 1g\.10gb GI \d+(?: CI \d+)?", text)) == names
    for text in views(found):
        assert ("How busy its MIG devices are is not known" in text) == all(load is None for *_, load in devices)


@seeds(range(20))
def test_a_loss_of_about_half_changes_its_colour_once(seed: int) -> None:
    dice, history, levels = random.Random(seed), History(), list[str]()
    about_half = [0.5 + dice.uniform(-0.04, 0.04) for _ in range(60)]
    for turn, lost in enumerate([*about_half, *[0.2] * 3, *[0.9] * 3]):
        found = snapshot(
            family("gpu_process_memory_used_bytes", ({"process": "p", "uuid": "GPU-a"}, 1 << 30)),
            family("torch_process_info", ({"process": "p", "pid": "7"}, 1)),
            family("training_state", ({"process": "p", "state": "training"}, 1)),
            family("training_limited_by", ({"process": "p", "cause": "data_loading"}, 1)),
            family("training_limited_by_ratio", ({"process": "p", "cause": "data_loading"}, lost)),
            at=100.0 + 5.0 * turn,
        )
        history.feed(found)
        (process,) = status(found, history)["gpus"][0]["processes"]
        levels += [process["level"]] if process["judging_since"] is None else []

    colours = [level for level, _ in groupby(levels[:-6])]
    assert colours in (["bad"], ["poor"], ["poor", "bad"])
    assert levels[-6:] == ["poor"] * 3 + ["bad"] * 3
