"""Drawn nodes under dcgm-exporter's names, compared with what was drawn."""

from __future__ import annotations

import gzip
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.drawn import seeds

from gpugauge.catalog import metrics
from gpugauge.exposition.dcgm import ROWS, DcgmExposition
from gpugauge.metric import Family, LabelValues
from gpugauge.snapshot import Section, Snapshot

CATALOGUE = {metric.name: metric for metric in metrics()}
MIB = 1 << 20
Rows: TypeAlias = "list[tuple[LabelValues, Any]]"
PLACES = ("container", "namespace", "pod")


@dataclass
class Gpu:
    """A drawn GPU, by the numbers that dcgm-exporter would show."""

    uuid: str
    index: int
    fields: dict[str, float]
    pods: list[tuple[str, str, str]] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)  # per second, or percent


# dcgm-exporter's field, our metric, its further labels, our value of one unit of the field.
GAUGES: dict[str, tuple[str, tuple[str, ...], float]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gpu_clock_hertz", ("sm",), 1e6),
    "DCGM_FI_DEV_MEM_CLOCK": ("gpu_clock_hertz", ("memory",), 1e6),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temperature_celsius", ("gpu",), 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gpu_temperature_celsius", ("memory",), 1),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_watts", (), 1),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("gpu_energy_joules_total", (), 1e-3),
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilization_ratio", (), 1e-2),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gpu_memory_utilization_ratio", (), 1e-2),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("gpu_pcie_replays_total", (), 1),
    "DCGM_FI_DEV_FB_TOTAL": ("gpu_memory_total_bytes", (), MIB),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory_used_bytes", (), MIB),
    "DCGM_FI_DEV_FB_FREE": ("gpu_memory_free_bytes", (), MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("gpu_memory_reserved_bytes", (), MIB),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("gpu_ecc_errors_total", ("corrected", "volatile"), 1),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("gpu_ecc_errors_total", ("corrected", "aggregate"), 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("gpu_ecc_errors_total", ("uncorrected", "volatile"), 1),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("gpu_ecc_errors_total", ("uncorrected", "aggregate"), 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("gpu_remapped_rows", ("uncorrectable",), 1),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("gpu_remapped_rows", ("correctable",), 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gpu_remapped_rows_failure", (), 1),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gpu_graphics_active_ratio", (), 1),
    "DCGM_FI_PROF_SM_ACTIVE": ("gpu_sm_active_ratio", (), 1),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("gpu_sm_occupancy_ratio", (), 1),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gpu_tensor_active_ratio", (), 1),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gpu_dram_active_ratio", (), 1),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("gpu_fp64_active_ratio", (), 1),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("gpu_fp32_active_ratio", (), 1),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("gpu_fp16_active_ratio", (), 1),
}
COUNTERS = {
    "DCGM_FI_PROF_PCIE_TX_BYTES": "gpu_pcie_transmitted_bytes_total",
    "DCGM_FI_PROF_PCIE_RX_BYTES": "gpu_pcie_received_bytes_total",
    "DCGM_FI_PROF_NVLINK_TX_BYTES": "gpu_nvlink_profiled_transmitted_bytes_total",
    "DCGM_FI_PROF_NVLINK_RX_BYTES": "gpu_nvlink_profiled_received_bytes_total",
}
# Fields with a test of their own below.
OTHERS = {"DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_XID_ERRORS"}
# The counters of etc/default-counters.csv; every other field is a gauge there.
COUNTED = re.compile(
    r"DCGM_FI_DEV_(TOTAL_ENERGY_CONSUMPTION|PCIE_REPLAY_COUNTER|ECC_.*_TOTAL|.*CORRECTABLE_REMAPPED_ROWS)"
)


def node(draw: random.Random) -> list[Gpu]:
    gpus = []
    for index in range(draw.randint(1, 8)):
        fields = {name: float(draw.randint(0, 2000)) for name in GAUGES if draw.random() < 0.8}
        pods = [(f"c{n}", f"team-{draw.randrange(3)}", f"pod-{index}-{n}") for n in range(draw.choice([0, 0, 1, 3]))]
        rates = {name: float(draw.choice([0, draw.randint(0, 10**9)])) for name in COUNTERS if draw.random() < 0.8}
        gpus.append(Gpu(f"GPU-{draw.getrandbits(64):x}", index, fields, pods, rates))
    return gpus


def snapshot(gpus: list[Gpu], at: float, **more: Rows) -> Snapshot:
    samples: dict[str, Rows] = {
        "gpu_info": [
            ((g.uuid, str(g.index), str(g.index), "H100", f"0:{g.index}", "9.0", "v", "", ""), 1) for g in gpus
        ],
        "gpu_allocation_info": [(_allocation(gpu, *pod), 1) for gpu in gpus for pod in gpu.pods],
        **more,
    }
    for gpu in gpus:
        for name, value in gpu.fields.items():
            ours, labels, unit = GAUGES[name]
            samples.setdefault(ours, []).append(((gpu.uuid, *labels), value * unit))
        for name, rate in gpu.rates.items():
            samples.setdefault(COUNTERS[name], []).append(((gpu.uuid,), 1e12 + rate * at))
    families = tuple(Family(CATALOGUE[name], tuple(rows)) for name, rows in samples.items())
    return Snapshot(0.0, at, (Section("drawn", families),))


def _allocation(gpu: Gpu, container: str, namespace: str, pod: str) -> tuple[str, ...]:
    known = {"uuid": gpu.uuid, "workload_container": container, "workload_namespace": namespace, "workload_pod": pod}
    return tuple(known.get(label, "") for label in CATALOGUE["gpu_allocation_info"].labels)


def shown(body: bytes) -> dict[tuple[str, str, tuple[str, ...]], float]:
    """Return the values by name, UUID and container."""
    found = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            # The parser adds _total to the names of counters; that of a field stays.
            name = sample.name if sample.name == family.name or family.type != "counter" else family.name
            key = (name, sample.labels["UUID"], tuple(sample.labels[name] for name in PLACES))
            assert key not in found
            found[key] = sample.value
    return found


@seeds(range(20))
def test_every_drawn_value_is_shown_once_for_each_container_and_nothing_else(seed: int) -> None:
    draw = random.Random(seed)
    gpus, seconds = node(draw), draw.choice([1.0, 15.0, 60.0])
    exposition = DcgmExposition("node-1")

    first = shown(exposition.respond(snapshot(gpus, 100.0), None).body)
    second = shown(exposition.respond(snapshot(gpus, 100.0 + seconds), None).body)

    places = {gpu.uuid: gpu.pods or [("", "", "")] for gpu in gpus}
    gauges = {(n, gpu.uuid, place): v for gpu in gpus for n, v in gpu.fields.items() for place in places[gpu.uuid]}
    rates = {(n, gpu.uuid, place): v for gpu in gpus for n, v in gpu.rates.items() for place in places[gpu.uuid]}
    assert first == pytest.approx(gauges)
    assert second == pytest.approx(gauges | rates, abs=1)


def test_labels_are_those_of_dcgm_exporter() -> None:
    gpu = Gpu("GPU-1", 3, {"DCGM_FI_DEV_GPU_TEMP": 60.0})
    build = CATALOGUE["gpugauge_build_info"].labels
    more: dict[str, Rows] = {
        "gpugauge_build_info": [(tuple("580.1" if label == "driver_version" else "" for label in build), 1)]
    }

    body = DcgmExposition("node-1").respond(snapshot([gpu], 1.0, **more), None).body.decode()

    (sample,) = next(iter(parse(body))).samples
    assert sample.labels == {
        "gpu": "3",
        "UUID": "GPU-1",
        "pci_bus_id": "0:3",
        "device": "nvidia3",
        "modelName": "H100",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "580.1",
        "container": "",
        "namespace": "",
        "pod": "",
    }


def test_a_mig_device_has_the_labels_of_its_gpu_and_its_instance() -> None:
    gpu = Gpu("GPU-1", 0, {})
    labels = CATALOGUE["gpu_mig_info"].labels
    known = {"uuid": "MIG-7", "parent_uuid": "GPU-1", "profile": "1g.10gb", "gpu_instance": "9"}
    more: dict[str, Rows] = {
        "gpu_mig_info": [(tuple(known.get(label, "") for label in labels), 1)],
        "gpu_mig_memory_used_bytes": [(("MIG-7",), 5.0 * MIB)],
    }

    body = DcgmExposition("node-1").respond(snapshot([gpu], 1.0, **more), None).body.decode()

    (sample,) = next(iter(parse(body))).samples
    assert (sample.name, sample.value) == ("DCGM_FI_DEV_FB_USED", 5.0)
    assert (sample.labels["UUID"], sample.labels["GPU_I_PROFILE"], sample.labels["GPU_I_ID"]) == (
        "GPU-1",
        "1g.10gb",
        "9",
    )


@seeds(range(200))
def test_the_xid_is_that_of_the_last_error_that_matters_and_zero_without_one(seed: int) -> None:
    draw = random.Random(seed)
    times = {
        str(code): draw.uniform(1e9 - draw.choice((600, 1e9)), 1e9)
        for code in draw.sample(range(1, 170), draw.randint(0, 5))
    }
    labels = CATALOGUE["gpu_xid_last_timestamp_seconds"].labels
    rows = [(tuple({"uuid": "GPU-1", "xid": x}.get(label, "") for label in labels), t) for x, t in times.items()]
    lasting = [row for row in rows if draw.random() < 0.3]  # not repaired
    more: dict[str, Rows] = {
        "gpu_xid_errors_total": [(("GPU-1", "node"), 0)],
        "gpu_xid_last_timestamp_seconds": rows,
        "gpu_xid_unrepaired_timestamp_seconds": [(key, at - draw.uniform(0, 1e6)) for key, at in lasting],
    }
    now = draw.uniform(1e9, 1e9 + 900)
    taken = replace(snapshot([Gpu("GPU-1", 0, {})], 1.0, **more), timestamp=now)

    found = shown(DcgmExposition("").respond(taken, None).body)

    shown_now = {xid: at for xid, at in times.items() if at > now - 300 or xid in {key[1] for key, _ in lasting}}
    assert found == {
        ("DCGM_FI_DEV_XID_ERRORS", "GPU-1", ("", "", "")): float(max(shown_now, key=times.__getitem__, default=0))
    }


def test_a_load_is_the_busy_share_of_the_observed_time_between_two_scrapes() -> None:
    gpu, exposition = Gpu("GPU-1", 0, {}), DcgmExposition("")
    for at, busy, observed in ((10.0, 4.0, 8.0), (25.0, 7.0, 20.0)):
        more: dict[str, Rows] = {
            "gpu_busy_seconds_total": [(("GPU-1", "encoder"), busy), (("GPU-1", "decoder"), 2 * busy)],
            "gpu_observed_seconds_total": [(("GPU-1", engine), observed) for engine in ("encoder", "decoder")],
        }
        found = shown(exposition.respond(snapshot([gpu], at, **more), None).body)
    place = "GPU-1", ("", "", "")
    assert found == {("DCGM_FI_DEV_ENC_UTIL", *place): 25.0, ("DCGM_FI_DEV_DEC_UTIL", *place): 50.0}


def test_a_counter_that_begins_again_has_no_rate_until_the_next_scrape() -> None:
    exposition, gpu = DcgmExposition(""), Gpu("GPU-1", 0, {})
    rates = []
    for at, total in ((0.0, 500.0), (10.0, 100.0), (20.0, 300.0)):
        more: dict[str, Rows] = {"gpu_pcie_received_bytes_total": [(("GPU-1",), total)]}
        rates.append(list(shown(exposition.respond(snapshot([gpu], at, **more), None).body).values()))
    assert rates == [[], [], [20.0]]


def test_two_scrapes_of_one_snapshot_are_equal_and_gzip_on_demand() -> None:
    exposition, taken = DcgmExposition(""), snapshot(node(random.Random(1)), 5.0)
    plain, packed = exposition.respond(taken, None), exposition.respond(taken, "gzip")
    assert packed.content_encoding == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_each_field_is_compared_and_has_the_type_that_dcgm_exporter_gives_it() -> None:
    kinds = {name: kind for name, kind, *_ in ROWS}
    assert kinds.keys() == GAUGES.keys() | COUNTERS.keys() | OTHERS
    assert kinds == {name: "counter" if COUNTED.fullmatch(name) else "gauge" for name in kinds}


def test_every_field_is_in_the_table_of_the_migration_document() -> None:
    document = (Path(__file__).parents[2] / "docs/migrating.md").read_text()
    assert [name for name, *_ in ROWS if f"`{name}`" not in document] == []
