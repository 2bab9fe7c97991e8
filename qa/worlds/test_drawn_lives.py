"""What is shown of drawn lives is what is recorded: no change of metrics, status or views is an accident."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from gpugauge.collectors.training.memory import MemoryCollector
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.status.model import Status
from qa.worlds.drawn_lives import RECORD

# What no life shows: NCCL is not asked, and a process of a kind lacks what is only of the others. Where those of a
# GPU that is down stand is seldom known, nor where those without one do.
ABSENT = re.compile(
    r"training_nccl_.*|status\.gpus\.health\.kind|status\.gpus\.(last_)?processes\.(devices|alive|mig)"
    r"|status\.gpus\.last_processes\.(load_5m|slowness)"
    r"|status\.(gpus\.last_processes|without_gpu)\.standstill\..*"
    r"|status\.(without_gpu|ended)\.(kind|devices|memory_used_bytes|load_5m|mig|alive)"
    r"|status\.without_gpu\.(ended|end_reason|end_words)"
    r"|status\.ended\.(samples_per_second|tokens_per_second|phase|standstill|loader|trouble_since|starting|silent"
    r"|judging_since|limited_by|limited_by_words|limited_by_ratio|lost_ratio|causes|evidence|undecidable"
    r"|data_wait_ratio|slowness)"
)


def inner(hint: Any) -> Any:
    """Return the dataclass in a type, None without one."""
    return hint if is_dataclass(hint) else next(filter(None, map(inner, get_args(hint))), None)


def named(kind: Any, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        name = f"{prefix}.{each.metadata.get('json', each.name)}"
        yield name
        if (of := inner(hints[each.name])) is not None and not ABSENT.fullmatch(name):
            yield from named(of, name)


@pytest.mark.parametrize("seed", range(RECORD.seeds))
def test_a_life_is_shown_as_it_is_recorded(seed: int) -> None:
    RECORD.check(seed)


def test_each_metric_and_each_field_is_recorded() -> None:
    shown = RECORD.columns().keys()
    collectors = (TrainingCollector, MemoryCollector, VerdictCollector)
    names = {row.name for each in collectors for row in each.metrics} | {*named(Status, "status")}

    missing = sorted(name for name in names if not any(f"{each}.".startswith(f"{name}.") for each in shown))
    assert [name for name in missing if not ABSENT.fullmatch(name)] == []
