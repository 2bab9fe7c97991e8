"""The rows of a node's dashboard about the health of its GPUs and their links."""

from __future__ import annotations

from gpugauge.faults.table import FAULTS
from grafana.build.layout import Panel
from grafana.build.panels import BAD, Query, timeseries
from grafana.build.queries import CLUSTER, COUNT, DEVICE_LEGEND, SHARE, Expr, Scope, by_device, keys
from grafana.build.tables import Column, dropped, table

UNSUPPORTED = "not reported by these GPUs"
NODE = Scope({"job": "~$job", "instance": "~$instance"})
DEVICES = NODE.with_labels(uuid="~$uuid")


def by_chosen_device(expr: Expr, *labels: str, operator: str = "max") -> Expr:
    """Return the aggregation to the chosen GPUs and the labels, with the labels that DEVICE_LEGEND needs."""
    return by_device(DEVICES, expr, *labels, operator=operator)


# Errors of programs are no fault of a GPU.
_OF_PROGRAMS = "|".join(fault.name for fault in FAULTS.values() if fault.severity == "info")


def faults(scope: Scope) -> Expr:
    """Return a series for each fault of a GPU, as its exporter judges it, with its words and the index of the GPU."""
    device, told = keys("instance", "uuid"), scope.select("gpu_problem_info", problem=f"!~{_OF_PROGRAMS}")
    index = f"max by ({device}, index) ({scope.select('gpu_info')})"
    # A GPU that was lost before the start of the exporter has no index.
    known = f"(topk by ({device}) (1, {index}) or on ({device}) max by ({device}) ({scope.select('gpu_up')} > bool -1))"
    words = f"max by ({keys('instance', 'uuid', 'summary', 'advice')}) ({told})"
    return Expr(f"{words}\n* on ({device}) group_left (index) {known}", COUNT)


def health() -> list[Panel]:
    """Return the panels about errors of the GPUs."""

    def volatile(kind: str) -> Expr:
        return by_chosen_device(DEVICES.increase("gpu_ecc_errors_total", type=kind, scope="volatile"), operator="sum")

    xids = by_chosen_device(DEVICES.read("gpu_xid_last_timestamp_seconds"), "xid")
    return [
        table(
            "Errors in the time shown",
            "By GPU: Xid errors, memory errors by kind, memory rows that wait for a reset to be remapped, and failed "
            "remappings (then the GPU should be replaced).",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("uuid", "short_uuid"),
            Column("Xid errors", by_chosen_device(DEVICES.increase("gpu_xid_errors_total"), operator="sum"), steps=BAD),
            Column("Uncorrected", volatile("uncorrected"), steps=BAD),
            Column("Corrected", volatile("corrected")),
            Column("Rows pending", by_chosen_device(DEVICES.read("gpu_remapped_rows_pending")), steps=BAD),
            Column("Rows failed", by_chosen_device(DEVICES.read("gpu_remapped_rows_failure")), steps=BAD),
            Column("PCIe replays", by_chosen_device(DEVICES.increase("gpu_pcie_replays_total"))),
            *dropped("uuid", CLUSTER),
            sort="GPU",
            ascending=True,
        ),
        table(
            "Last Xid errors",
            "The last time of each code. The codes are explained in NVIDIA's Xid catalogue, the steps for each class "
            "in docs/runbook.md.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Xid", "xid"),
            Column("Last seen", xids),
            Column("uuid", "short_uuid"),
            *dropped("uuid", CLUSTER),
            sort="Last seen",
            width=12,
            empty_text="no Xid error",
        ),
        table(
            "Faults",
            "A line for each fault, as the exporter judges it. docs/runbook.md says more.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Fault", "summary"),
            Column("Do this", "advice"),
            Column("uuid", "uuid"),
            *dropped(CLUSTER, faults(DEVICES)),
            empty_text="no GPU that reports has a fault",
            width=12,
        ),
        timeseries(
            "Xid errors, by class",
            "`application`: an error of the program; `reset`: reset the GPU; `node`: inspect the machine; "
            "`workflow`: follow NVIDIA's workflow for memory or NVLink.",
            Query(
                DEVICES.increase("gpu_xid_errors_total", "$__rate_interval").by("instance", "class"),
                "{{instance}} · {{class}}",
            ),
            width=24,
            bars=True,
            empty_text="the driver reports no Xid errors",
        ),
    ]


def links() -> list[Panel]:
    """Return the panels about the traffic between GPUs and host, and between GPUs."""

    def both(title: str, text: str, sent: str, received: str) -> Panel:
        ways = ((sent, "out"), (received, "in"))
        return timeseries(
            title,
            text,
            *(Query(by_chosen_device(DEVICES.rate(name)), f"{DEVICE_LEGEND} · {way}") for name, way in ways),
            legend=False,
            empty_text=UNSUPPORTED,
        )

    current, maximum = (DEVICES.select("gpu_pcie_width", when=when) for when in ("current", "max"))
    lanes = Expr(f"{current} / ignoring (when) {maximum}", SHARE)
    return [
        both(
            "PCIe traffic",
            "From the performance counters, on Hopper and newer. High traffic while the GPU has gaps means that it "
            "waits for copies: use pinned memory.",
            "gpu_pcie_transmitted_bytes_total",
            "gpu_pcie_received_bytes_total",
        ),
        both(
            "NVLink traffic",
            "Bytes over all links of a GPU.",
            "gpu_nvlink_transmitted_bytes_total",
            "gpu_nvlink_received_bytes_total",
        ),
        timeseries(
            "PCIe lanes in use",
            "Share of the lanes that GPU and slot support. If it is below 1 under load, reseat the GPU or check the "
            "width of the slot.",
            Query(by_chosen_device(lanes), DEVICE_LEGEND),
            highest=1,
            legend=False,
            empty_text=UNSUPPORTED,
        ),
        timeseries(
            "NVLinks that are up",
            "Number of links of a GPU. A line that falls is a link that failed.",
            Query(by_chosen_device(DEVICES.read("gpu_nvlink_active"), operator="sum").with_unit(COUNT), DEVICE_LEGEND),
            legend=False,
            empty_text="no GPU has NVLink",
        ),
        timeseries(
            "Link errors",
            "PCIe and NVLink errors per second, by kind. The hardware corrects occasional errors; a steady rise "
            "indicates a faulty cable, slot or GPU.",
            Query(DEVICES.rate("gpu_pcie_errors_total").by("instance", "kind"), "{{instance}} · PCIe {{kind}}"),
            Query(DEVICES.rate("gpu_nvlink_errors_total").by("instance", "kind"), "{{instance}} · NVLink {{kind}}"),
            empty_text=UNSUPPORTED,
        ),
    ]
