"""The dashboard of the cost: GPU hours held, used and wasted, energy, and what they cost, by user and job."""

from __future__ import annotations

from gpugauge.artifacts.rules import cost
from grafana.build import common, jobs
from grafana.build.layout import Json, Panel, Row
from grafana.build.panels import Column, Query, bars, stat, table, timeseries
from grafana.build.queries import CLUSTER, SHARE, Expr, recorded

_NONE = "nothing: it needs the rules of gpugauge rules --prices"
_UNPRICED = "no prices: gpugauge rules --prices"
_OF = {"workload_namespace": "~$namespace", "workload_user": "~$user"}
_USER = ("workload_namespace", "workload_user", CLUSTER)


def dashboard() -> Json:
    """Return the dashboard."""
    known = f'{cost.by_user(cost.HELD)}{{{CLUSTER}=~"${CLUSTER}"'
    namespaces = f"label_values({known}}}, workload_namespace)"
    users = f'label_values({known},workload_namespace=~"$namespace"}}, workload_user)'
    return common.make_dashboard(
        common.COST,
        "gpugauge / Cost",
        "What trainings held, used and wasted, and what it cost, by user and by job. It reads the rules of "
        "`gpugauge rules --prices FILE`, beside those of `gpugauge rules`. Held is used and wasted together.",
        [
            common.Variable(CLUSTER, "Cluster", f"label_values({cost.by_user(cost.HELD)}, {CLUSTER})", multi=False),
            common.Variable("namespace", "Namespace", namespaces),
            common.Variable("user", "User", users),
        ],
        [Row("", [*_sums(), _over_time(), _by_cause(), _users(), _jobs(), _products()])],
        common.alerts(severity="~critical|warning"),
        start="now-7d",
    )


def _sum(name: str, *labels: str, user: bool = True) -> Expr:
    """Return what was recorded in the time shown, by labels."""
    of = recorded(cost.by_user(name) if user else name, **_OF)
    return of.then("sum_over_time({}[$__range])").by(*labels)


def _sums() -> list[Panel]:
    held, used, lost = (_sum(name) for name in (cost.HELD, cost.USED, cost.LOST))
    site = _sum(cost.ENERGY).then(f"{{}} * scalar({recorded(cost.PUE)})")
    grams = _sum(cost.ENERGY).then(f"{{}} * scalar({recorded(cost.PUE)}) * scalar({recorded(cost.CO2E)})", "massg")
    unpriced = recorded(cost.by_user(cost.HELD), **_OF).then(
        f"sum(sum_over_time({{}}[$__range]) unless on ({cost.PRODUCT}) {recorded(cost.PRICE)})\n"
        f"or 0 * sum(sum_over_time({{}}[$__range]))"
    )
    return [
        stat(
            "GPU hours",
            "Held by trainings in the time shown, and of these used and wasted: in the fleet, those of trainings.",
            *(Query(expr, name) for name, expr in (("held", held), ("used", used), ("wasted", lost))),
            width=8,
            empty_text=_NONE,
            mode="value_and_name",
            decimals=1,
        ),
        stat(
            "Cost",
            "Of the GPU hours held, and of the part of them that was wasted, by the prices of the file at that time.",
            Query(_sum(cost.HELD_COST, cost.CURRENCY), "held {{currency}}"),
            Query(_sum(cost.LOST_COST, cost.CURRENCY), "wasted {{currency}}"),
            width=6,
            empty_text=_UNPRICED,
            mode="value_and_name",
            decimals=1,
        ),
        stat(
            "Energy",
            "Of the GPUs of trainings, and that of the site with the PUE of the file. The energy of a GPU that several "
            "programs hold is divided by their number.",
            Query(_sum(cost.ENERGY), "GPUs"),
            Query(site, "with PUE"),
            width=4,
            empty_text=_NONE,
            mode="value_and_name",
            decimals=1,
        ),
        stat("CO2e", "With the PUE and the factor of the file.", Query(grams), width=3, empty_text="no factor"),
        stat(
            "Unpriced GPU hours",
            "Held on GPUs whose product is not in the file of prices, or not known: no cost has them.",
            Query(unpriced),
            width=3,
            decimals=1,
            empty_text=_NONE,
        ),
    ]


def _over_time() -> Panel:
    def of(name: str, *labels: str) -> Expr:
        return recorded(cost.by_user(name), **_OF).then("sum_over_time({}[1h])").by(*labels)

    return timeseries(
        "GPU hours wasted in the hour before, by cause",
        "Line: those held.",
        Query(of(cost.HELD), "held"),
        Query(of(cost.LOST, "cause").then("{} > 0"), "{{cause}}"),
        width=16,
        stack=True,
        names={**jobs.CAUSE_NAMES, "held": ("", "white")},
        lines=("held",),
        empty_text=_NONE,
    )


def _by_cause() -> Panel:
    return bars(
        "GPU hours wasted, by cause",
        "In the time shown. docs/verdict.md lists the evidence of each cause.",
        Query(_sum(cost.LOST, "cause").then("sort_desc({} > 0)"), "{{cause}}"),
        names={name: (text, "") for name, (text, _) in jobs.CAUSE_NAMES.items()},
        empty_text=_NONE,
    )


def _columns(labels: tuple[str, ...], *, user: bool) -> list[Column]:
    def of(name: str, *more: str) -> Expr:
        return _sum(name, *labels, *more, user=user)

    share = Expr(f"{of(cost.LOST)} / {of(cost.HELD)}", SHARE)
    return [
        Column("Held", of(cost.HELD), size=80, decimals=1),
        Column("Used", of(cost.USED), size=80, decimals=1),
        Column("Wasted", of(cost.LOST), size=80, decimals=1),
        Column("Wasted share", share, size=110),
        Column("Energy", of(cost.ENERGY), size=90, decimals=1),
        Column("Cost", of(cost.HELD_COST), size=90, decimals=2),
        Column("Of it wasted", of(cost.LOST_COST), size=105, decimals=2),
    ]


def _users() -> Panel:
    return table(
        "By namespace and user",
        "In the time shown. The lines add up to the sums above; cost is in the currency of the file.",
        Column("Namespace", "workload_namespace"),
        Column("User", "workload_user"),
        *_columns(_USER, user=True),
        sort="Wasted",
        height=9,
        empty_text=_NONE,
    )


def _jobs() -> Panel:
    labels = (*jobs.JOB_LABELS, "workload_user")
    columns = _columns(labels, user=False)
    held = columns[0].source
    assert isinstance(held, Expr)
    named = jobs.called(common.with_cluster_choice(held))
    return table(
        "By job",
        "In the time shown, also those that ended.",
        *common.job_columns(namespace=100),
        Column("User", "workload_user", size=100),
        Column("Held", named, size=80, decimals=1),
        *columns[1:],
        sort="Wasted",
        height=10,
        empty_text=_NONE,
    )


def _products() -> Panel:
    price = recorded(cost.PRICE).by(cost.PRODUCT, operator="max")
    return table(
        "By product",
        "In the time shown, with the price of a GPU hour now.",
        Column("GPU", cost.PRODUCT),
        Column("Held", _sum(cost.HELD, cost.PRODUCT), size=90, decimals=1),
        Column("Wasted", _sum(cost.LOST, cost.PRODUCT), size=90, decimals=1),
        Column("Energy", _sum(cost.ENERGY, cost.PRODUCT), size=90, decimals=1),
        Column("Price", price, size=90, decimals=2),
        Column("Cost", _sum(cost.HELD_COST, cost.PRODUCT), size=90, decimals=2),
        sort="Held",
        empty_text=_NONE,
    )
