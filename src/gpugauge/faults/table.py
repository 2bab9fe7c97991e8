"""The faults of GPUs: a row for each alert about a GPU, and what is wrong with a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from gpugauge.driver.advice import down_advice, down_phrase
from gpugauge.driver.vendors import VENDORS, Vendor
from gpugauge.driver.vendors.vendor import LINK, UNCORRECTED
from gpugauge.settings.model import Faults

Severity = Literal["info", "warning", "critical"]
Action = Literal["", "reset", "reset_later", "drain"]


class Fault(NamedTuple):
    """A fault by the name of its alert, which is that of its section in docs/runbook.md. `word` is the state of the GPU
    in at most 14 characters, `summary` follows its name, `action` is what a router of alerts does, and those that it
    `explains` are not notified while it is there. `before` is the command that shows what its repair clears, `after`
    the one that shows under load whether it has helped: by what is `expected`.
    """

    name: str
    severity: Severity
    word: str
    summary: str
    action: Action = ""
    explains: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    expected: str = ""


_XIDS = ("GpuXidReset", "GpuXidWorkflow", "GpuXidApplication")
_EFFECTS = ("GpuThrottled", "GpuHot", "GpuPcieDegraded", "GpuNvlinkErrors", "GpuNeedsReset", "GpuResetPending")
_LOST_EXPLAINS = (*_EFFECTS, "GpuUncorrectedEcc", *_XIDS, "GpuXidNode", "GpuXidOther")
_LINKS = ("GpuNvlinkErrors", "GpuPcieDegraded")
_RESET_EXPLAINS = ("GpuResetPending", "GpuUncorrectedEcc", *_LINKS, *_XIDS)
_REPLACED_EXPLAINS = ("GpuNeedsReset", "GpuResetPending", "GpuUncorrectedEcc", *_XIDS)
# The gravest first. What must be repaired at once is critical; the repair of the others waits until the jobs end.
_ROWS = (
    Fault("GpuLost", "critical", "down", "does not answer", "drain", _LOST_EXPLAINS),
    Fault("GpuXidNode", "critical", "errors", "had an Xid error", "drain"),
    Fault(
        "GpuRowRemapFailed", "critical", "faulty memory", "cannot replace faulty memory", "drain", _REPLACED_EXPLAINS
    ),
    Fault(
        *("GpuNeedsReset", "critical", "needs recovery", "needs recovery", "reset", _RESET_EXPLAINS),
        before="{memory_errors}",
    ),
    Fault("GpuXidReset", "critical", "errors", "had an Xid error", "reset", _LINKS),
    Fault(
        *("GpuUncorrectedEcc", "warning", "memory errors", "had uncorrected memory errors", "reset_later"),
        explains=("GpuResetPending",),
    ),
    Fault("GpuXidWorkflow", "warning", "errors", "had an Xid error"),
    Fault("GpuResetPending", "warning", "reset pending", "needs a reset when its jobs have ended", "reset_later"),
    Fault(
        *("GpuNvlinkErrors", "warning", "NVLink errors", "has NVLink errors"),
        before="{link_errors}",
        after="{link_errors}",
        expected="counts that do not grow",
    ),
    Fault(
        *("GpuThrottled", "warning", "clocks lowered", "lowers its clocks"),
        explains=("GpuHot",),
    ),
    Fault("GpuHot", "warning", "hot", "is near its slowdown temperature"),
    Fault(
        *("GpuPcieDegraded", "warning", "narrow link", "uses fewer PCIe lanes than it could"),
        after="{width}",
        expected="all lanes",
    ),
    Fault("GpuReadingFailed", "warning", "slow", "cannot be read in part"),
    Fault("GpuXidApplication", "info", "errors", "had an Xid error"),
    Fault("GpuXidOther", "info", "errors", "had an Xid error"),
)
FAULTS = {fault.name: fault for fault in _ROWS}
_ORDER = {name: place for place, name in enumerate(FAULTS)}
REASONED = frozenset({"GpuNeedsReset", "GpuResetPending"})
"""Faults whose alerts have the label `reason`, and its words in the summary."""
PASSING = frozenset({"GpuXidApplication", "GpuXidOther"})
"""Errors that are no faults of the GPU after a while."""
DEFAULTS = Faults()
"""The thresholds without settings."""
NVLINK_NEVER = ("replay", "recovery", "recovery_failed", "ecc_data", "malformed_packet", "buffer_overrun")
"""Errors that should not occur. NVIDIA's DCGM reports the first replay, too; but it loses nothing, and the count stays
until the driver is loaded again."""
_REPLAYS = 10
_MAX_LINKS = 3  # in the words of a fault
NVLINK_CORRECTED = ("crc_flit", "crc_data", "receive")
"""Errors that the link corrects."""
COOLING = "the cooling (fans, air flow, inlet temperature, coolant)"
# A power cap is the normal state of a busy GPU, and no fault.
SLOWDOWNS = {
    "hw_thermal_slowdown": ("thermal slowdown (hardware)", COOLING),
    "sw_thermal_slowdown": ("thermal slowdown (software)", COOLING),
    "hw_power_brake_slowdown": ("power brake", "the power supply, which asks the GPU to slow down"),
    "hw_slowdown": ("hardware slowdown", f"{COOLING} and the power supply"),
    "vr_thermal_slowdown": ("thermal slowdown (voltage regulators)", COOLING),
    "memory_thermal_slowdown": ("thermal slowdown (memory)", COOLING),
}
"""By the reason of `gpu_clocks_event_active`: why clocks are lowered, and what to check."""
_REPLACE = "{hand}confirm with {diagnostics}, and have it replaced"
_NARROW = (
    "{later}; {reboot}retrains the PCIe link of; if the link stays narrow, have the seating of GPU and riser, and the "
    "slot checked"
)


class Ailment(NamedTuple):
    """A fault of one GPU. `runbook` is the name of the fault, and `kind` that of a problem of the node
    (status/problem.py). `reason` has no figures, so that it seldom changes. `since` is the Unix time of its begin; one
    that was `earlier` may have been there before.
    """

    text: str
    advice: str  # as `Site.fill` takes it
    runbook: str
    reason: str = ""
    kind: str = "gpu_health"
    xid: tuple[str, str] = ("", "")  # code and name
    where: str = ""  # follows the summary of the fault, without figures
    since: float | None = None
    earlier: bool = False

    @property
    def grave(self) -> bool:
        """Whether the GPU is not usable until something is done."""
        return FAULTS[self.runbook].severity == "critical"


class GpuHealth(NamedTuple):
    """The figures about one GPU; an unknown one is as if there were no error."""

    recovery_action: str = "none"
    remapping_failed: bool = False
    remapping_pending: bool = False
    retired_pages: float = 0
    retirement_pending: bool = False
    uncorrected: float = 0  # errors since the driver was loaded
    nvlink_errors: Mapping[str, float] = {}  # by kind, since the driver was loaded
    nvlink_corrected: float | None = None  # of one kind of NVLINK_CORRECTED per second
    temperature: float | None = None
    slowdown_temperature: float | None = None  # at which it lowers its clocks
    lanes: tuple[int, int] | None = None  # of its PCIe link, and their maximum
    load: float | None = None  # the share of the time in which a kernel ran, over the window
    link_load: float | None = None  # over the last minutes
    was_narrow: bool = False  # under load, and not wide since
    slowed: Mapping[str, float] = {}  # the share of the time by reason of SLOWDOWNS
    nvlink_grown: float | None = None  # Unix time at which those of NVLINK_NEVER grew last
    vendor: Vendor = VENDORS[0]
    number: str = "INDEX"
    links: Mapping[str, tuple[float, str]] = {}  # those with errors of NVLINK_NEVER: how many, and the other end


def ailments(health: GpuHealth, limits: Faults = DEFAULTS) -> list[Ailment]:
    """Return what is wrong with a GPU that answers, the gravest first."""
    return sorted(_found(health, limits), key=lambda each: order(each.runbook))


def order(name: str) -> int:
    """Return the place of a fault among all, the gravest first; one that is none is the last."""
    return _ORDER.get(name, len(_ORDER))


def _found(health: GpuHealth, limits: Faults) -> Iterator[Ailment]:
    vendor = health.vendor
    replace = vendor.fill(_REPLACE)
    if (action := health.recovery_action) != "none":
        otherwise = action.replace("_", " "), f"see {vendor.name}'s documentation"
        wanted, advice = vendor.recovery.get(action, otherwise)
        text = f"the driver requires {wanted} after an error"
        yield Ailment(text, vendor.fill(advice), "GpuNeedsReset", action)
    if health.remapping_failed:
        yield Ailment("the remapping of a faulty memory row failed", replace, "GpuRowRemapFailed")
    if health.retired_pages >= limits.retired_pages:
        text = f"{health.retired_pages:.0f} of at most 64 memory pages are retired"
        yield Ailment(text, replace, "GpuRowRemapFailed", "retired_pages")
    if health.remapping_pending:
        text = "a faulty memory row waits to be remapped"
        advice = "{later}; {reset}" if health.uncorrected else "programs on it are not affected; {later}; {reset}"
        yield Ailment(text, advice, "GpuResetPending", "row_remap_pending")
    if health.retirement_pending:
        text = "a faulty memory page waits to be retired"
        yield Ailment(text, "{later}; {reset}", "GpuResetPending", "page_retirement_pending")
    if count := health.uncorrected:
        text = f"{count:.0f} uncorrected memory error{'s' if count > 1 else ''} since the driver was loaded"
        yield Ailment(text, vendor.fill(UNCORRECTED), "GpuUncorrectedEcc")
    if (found := _nvlink_words(health, limits))[0]:
        yield Ailment(found[0], vendor.fill(LINK, health.number), "GpuNvlinkErrors", where=found[1])
    temperature, limit = health.temperature, health.slowdown_temperature
    if temperature is not None and limit is not None and temperature >= limit - limits.near_slowdown_celsius:
        near = "near" if temperature < limit else "not below"
        text = f"it is at {temperature:.0f} °C, {near} its slowdown temperature ({limit:.0f} °C)"
        yield Ailment(text, f"check {COOLING}", "GpuHot")
    yield from _under_load(health, limits)


def _under_load(health: GpuHealth, limits: Faults) -> Iterator[Ailment]:
    slowed = [reason for reason, share in health.slowed.items() if share >= limits.slowed_ratio]
    if slowed and (health.load or 0.0) >= limits.under_load_ratio:
        share = 100 * max(health.slowed[reason] for reason in slowed)
        lowered = "clocks lowered" + (f" for {share:.0f} % of the time" if share < 99.5 else "")
        text = f"{lowered}: {', '.join(slowdowns(slowed))}"
        advice = f"check {' and '.join(dict.fromkeys(SLOWDOWNS[reason][1] for reason in slowed))}"
        yield Ailment(text, advice, "GpuThrottled", slowed[0], "gpu_slowed")
    width, most = health.lanes or (0, 0)
    if width < most and (health.was_narrow or (health.link_load or 0.0) >= limits.under_load_ratio):
        text = f"its PCIe link has {width} of {most} lanes: copies between host and GPU take longer"
        yield Ailment(text, _NARROW, "GpuPcieDegraded", kind="narrow_link")


def lost(reason: str, vendor: Vendor) -> Ailment:
    """Return the fault of a GPU that is down for a reason of the driver."""
    return Ailment(down_phrase(reason), down_advice(reason, vendor) or "", "GpuLost", reason, "gpu_down")


def xid_fault(xid: int, vendor: Vendor, index: int = -1) -> Ailment | None:
    """Return the fault of an Xid error of a GPU (index -1: not known), None if nobody is alerted about its class."""
    code, kind, name = vendor.error_labels(xid)
    text = f"Xid {code}" + (f" ({name})" if name else "")
    fault = f"GpuXid{kind.capitalize()}"
    advice = vendor.error_advice.get(code) or vendor.error_advice.get(kind, "")
    advice = vendor.fill(advice, "INDEX" if index < 0 else index)
    return Ailment(text, advice, fault, kind="xid", xid=(code, name)) if fault in FAULTS else None


def _nvlink_words(health: GpuHealth, limits: Faults) -> tuple[str, str]:
    """Return which errors of its NVLinks are a fault of a GPU, "" if none is, and on which links they are."""
    never = {kind: count for kind in NVLINK_NEVER if (count := health.nvlink_errors.get(kind))}
    if never.keys() - {"replay"} or never.get("replay", 0) >= _REPLAYS:
        counted = (f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in never.items())
        last = health.nvlink_grown and datetime.fromtimestamp(health.nvlink_grown, timezone.utc)
        where = _links_words(health.links)
        more = f"{';' if where else ','} the last at {last:%Y-%m-%d %H:%M} UTC" if last else ""
        counts = ", ".join([*counted, *filter(None, [where])])
        return f"NVLink errors since the driver was loaded: {counts}{more}", where
    rate = health.nvlink_corrected or 0.0
    return f"its NVLinks correct {rate:.0f} errors per second" if rate >= limits.nvlink_errors_per_second else "", ""


def _links_words(links: Mapping[str, tuple[float, str]]) -> str:
    """Return the links with the most errors and their other ends; "" if none is known."""
    # By the number of digits, so that the order, which is in labels, seldom changes.
    order = sorted(links, key=lambda link: (-len(f"{links[link][0]:.0f}"), len(link), link))
    named = [link + (f" (to {end})" if (end := links[link][1]) else "") for link in order[:_MAX_LINKS]]
    more = f" and {len(order) - _MAX_LINKS} more" if len(order) > _MAX_LINKS else ""
    return f"on link{'s' if len(order) > 1 else ''} {', '.join(named)}{more}" if links else ""


def slowed_by(reason: str) -> str:
    """Return what lowers the clocks, in a few words."""
    return "heat" if "thermal" in reason else "a power brake" if "brake" in reason else "heat or a power brake"


def slowdowns(active: Collection[str]) -> list[str]:
    """Return the reasons in words that lower the clocks because something is wrong."""
    return [words for reason, (words, _) in SLOWDOWNS.items() if reason in active]
