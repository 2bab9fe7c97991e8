"""The rows of a node's dashboard about the health of its GPUs and their links."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.panels import BAD, Panel, Query, timeseries
from gpugauge.artifacts.dashboards.queries import DEVICE, SHARE, Expr, Scope, by_device
from gpugauge.artifacts.dashboards.tables import Column, table

NODE = Scope({"job": "~$job", "instance": "~$instance"})
DEVICES = NODE.of(uuid="~$uuid")


def by_chosen_device(expr: Expr, *labels: str, operator: str = "max") -> Expr:
    """Aggregate to the GPUs chosen and the labels; the legend for it is `GPU`."""
    return by_device(DEVICES, expr, *labels, operator=operator)


def health() -> list[Panel]:
    """Return what tells whether the GPUs are well."""

    def volatile(kind: str) -> Expr:
        return by_chosen_device(DEVICES.increase("gpu_ecc_errors_total", type=kind, scope="volatile"), operator="sum")

    wanted = DEVICES.read("gpu_recovery_action", action="!none").then("{} == 1")
    xids = by_chosen_device(DEVICES.read("gpu_xid_last_timestamp_seconds"), "xid")
    return [
        table(
            "Errors in the time shown",
            "By GPU: Xid errors, memory errors by kind, rows of memory that wait for a reset to be replaced, and "
            "whether replacing failed "
            "(then the GPU should be exchanged).",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("uuid", "short_uuid"),
            Column("Xid errors", by_chosen_device(DEVICES.increase("gpu_xid_errors_total"), operator="sum"), steps=BAD),
            Column("Uncorrected", volatile("uncorrected"), steps=BAD),
            Column("Corrected", volatile("corrected")),
            Column("Rows pending", by_chosen_device(DEVICES.read("gpu_remapped_rows_pending")), steps=BAD),
            Column("Rows failed", by_chosen_device(DEVICES.read("gpu_remapped_rows_failure")), steps=BAD),
            Column("PCIe replays", by_chosen_device(DEVICES.increase("gpu_pcie_replays_total"))),
            Column("", "uuid", hidden=True),
            sort="GPU",
            ascending=True,
        ),
        table(
            "Last Xid errors",
            "When each code was last seen. NVIDIA's Xid catalogue tells what a code means; docs/runbook.md what to "
            "do for each class.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Xid", "xid"),
            Column("Last seen", xids),
            Column("uuid", "short_uuid"),
            Column("", "uuid", hidden=True),
            sort="Last seen",
            width=12,
        ),
        table(
            "What the driver wants done",
            "The driver asks for this to recover from an error; empty is good.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Action", "action"),
            Column("uuid", "short_uuid"),
            Column("", "uuid", hidden=True),
            Column("", by_chosen_device(wanted, "action"), hidden=True),
            width=12,
        ),
        timeseries(
            "Xid errors, by class",
            "`application`: the program did something wrong; `reset`: reset the GPU; `node`: look at the machine; "
            "`workflow`: follow NVIDIA's "
            "workflow for memory or NVLink.",
            Query(
                DEVICES.increase("gpu_xid_errors_total", "$__rate_interval").by("instance", "class"),
                "{{instance}} · {{class}}",
            ),
            width=24,
            bars=True,
        ),
    ]


def links() -> list[Panel]:
    """Return the traffic between GPUs and host, and among GPUs."""

    def both(title: str, text: str, sent: str, received: str) -> Panel:
        ways = ((sent, "out"), (received, "in"))
        return timeseries(
            title, text, *(Query(by_chosen_device(DEVICES.rate(name)), f"{DEVICE} · {way}") for name, way in ways)
        )

    now, most = (DEVICES.select("gpu_pcie_width", when=when) for when in ("current", "max"))
    lanes = Expr(f"{now} / ignoring (when) {most}", SHARE)
    return [
        both(
            "PCIe traffic",
            "From the performance counters, Hopper and newer. High while the GPU has gaps: copies are what it "
            "waits for; pin memory.",
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
            "Share of the lanes that GPU and slot can have. Below 1 under load: reseat the GPU, or the slot is narrow.",
            Query(by_chosen_device(lanes), DEVICE),
            highest=1,
        ),
        timeseries(
            "Link errors",
            "Errors a second over PCIe and NVLink by kind. A few are corrected by themselves; a steady rise is a "
            "cable, a slot or a GPU.",
            Query(DEVICES.rate("gpu_pcie_errors_total").by("instance", "kind"), "{{instance}} · PCIe {{kind}}"),
            Query(DEVICES.rate("gpu_nvlink_errors_total").by("instance", "kind"), "{{instance}} · NVLink {{kind}}"),
        ),
    ]
