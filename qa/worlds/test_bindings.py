"""Versions of the binding differ in the names that they have: a missing one costs only the values that need it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.drawn import seeds
from tests.simulator.build import Clock, opened

from gpugauge.driver.api import MigReading
from gpugauge.driver.codes import ENGINES
from gpugauge.driver.nvidia import nvml as module
from gpugauge.driver.nvidia.caller import _BOUND_AS
from gpugauge.driver.nvidia.fieldvalues import FIELD_VALUES
from gpugauge.driver.nvidia.gpm import FIELDS as PROFILING_FIELDS

MIG_FIELDS = MigReading._fields
SOURCES = Path(module.__file__).parent
# Without these there is no reading at all, so they are used as attributes of the binding.
INDISPENSABLE = {"NVMLError", "NVMLLibraryMismatchError", "NVML_INIT_FLAG_NO_GPUS"}
INDISPENSABLE |= {"nvmlLib", "_nvmlGetFunctionPointer", "_nvmlGetFunctionPointer_cache"}
ABSENT_FROM_THE_OLDEST = {"c_nvmlFanSpeedInfo_t", "nvmlFanSpeedInfo_v1", "nvmlDeviceGetFanSpeedRPM"}
ABSENT_FROM_THE_OLDEST |= {"nvmlDeviceGetTemperatureV"}
# Functions that open the driver and find the GPUs.
OPENING = {"nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
# Values that need the same name, where these are more than five.
FAMILIES = (
    {row.field for row in FIELD_VALUES},
    {*PROFILING_FIELDS, "gpm_supported", *(f"mig.{field}" for field in MIG_FIELDS)},
    {"uuid", "mig_mode", "mig_mode_pending", "mig_instances", *(f"mig.{field}" for field in MIG_FIELDS)},
    {f"{of}memory_{kind}_bytes" for of in ("", "mig.") for kind in ("total", "used", "free", "reserved")},
    {f"samples_{engine}" for engine in ENGINES},
)
SCENARIO = """
driver: {version: 570.124.06}
gpus: [{model: geforce}, {model: h100}, {model: h100, mig: [{profile: 1g.10gb}]}, {model: t4}]
processes: [{pid: 7, gpus: [0, 1, 3], memory: 1GiB, load: 0.5}]
"""


def trees() -> Iterator[ast.AST]:
    for path in SOURCES.glob("*.py"):
        yield ast.parse(path.read_text())


def attributes() -> set[str]:
    """Return the names that the sources use as attributes of the binding."""
    return {
        node.attr
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ((isinstance(node.value, ast.Name) and node.value.id in {"pynvml", "binding"}) or is_binding(node.value))
    }


def is_binding(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "binding"


def looked_up() -> set[str]:
    """Return the names that the sources look up by text: functions, structures and their versions."""
    texts = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = {text for text in texts if re.fullmatch(r"(c_)?nvml[A-Z]\w+|NVML_\w+", text)}
    return {_BOUND_AS.get(name, name) for name in names}


def test_only_indispensable_names_are_used_as_attributes() -> None:
    assert attributes() == INDISPENSABLE


def test_the_sources_name_only_what_a_binding_has() -> None:
    """A name that the oldest version lacks is one of the newest, and the other way round."""
    missing = {name for name in attributes() | looked_up() if not hasattr(pynvml, name)}

    assert len(looked_up()) > 80
    assert missing <= ABSENT_FROM_THE_OLDEST, f"{sorted(missing)} are no names of the binding"


def fields(clock: Clock) -> set[str]:
    """Return the fields that four GPUs have together, by GPU, also those of rings and of MIG devices."""
    nvml = opened(SCENARIO, clock)
    found = set()
    for clock.now in (1.0, 3.0):
        for index in range(nvml.facts().device_count):
            values, _ = nvml.read(index, ["static", "fast", "profiling", "normal", "slow", "processes", "mig"])
            samples, _ = nvml.samples(index)
            found |= {f"{index}:{name}" for group in values.values() for name in flat(group)}
            found |= {f"{index}:samples_{engine}" for engine in samples}
    return found


def flat(group: dict[str, Any]) -> Iterator[str]:
    for name, value in group.items():
        yield name
        if name == "mig_instances" and value:
            yield from (f"mig.{key}" for key, known in value[0].items() if known is not None)


WHOLE = fields(Clock())


LOOKED_UP = sorted((looked_up() & set(dir(pynvml))) - OPENING)


@seeds(range(len(LOOKED_UP)), "place")
def test_a_missing_name_costs_only_its_own_values(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, LOOKED_UP[place])
    left = fields(Clock())

    lost = {field.partition(":")[2] for field in WHOLE - left}
    assert left <= WHOLE
    assert len(lost) <= 5 or any(lost <= family for family in FAMILIES), f"without {LOOKED_UP[place]}: {sorted(lost)}"
