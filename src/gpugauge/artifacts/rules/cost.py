"""The recording rules about GPU hours, energy and cost, beside those of `gpugauge rules`. Each evaluation records what
came since the one before, so that `sum_over_time` over any range is a bill.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpugauge.artifacts.rules.promql import HAS_JOB, JOB_LABELS, PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.recording import TRAINING, Recording, gpus
from gpugauge.base.duration import format_duration

OWNER = "gpugauge:process_held_by:info"
_PROCESS_USER, _PROCESS_GPU = "gpugauge:process_user:info", "gpugauge:process_gpu:info"
_PROCESS_OWNER = "gpugauge:process_owner:info"
HELD, USED, LOST = (f"gpugauge:job_gpu_{what}:hours" for what in ("held", "used", "lost"))
ENERGY = "gpugauge:job_gpu_energy:kilowatt_hours"
HELD_COST, LOST_COST = (f"gpugauge:job_gpu_{what}:cost" for what in ("held", "lost"))
PRICE, PUE, CO2E = "gpugauge:gpu_hour:price", "gpugauge:site_pue:ratio", "gpugauge:site_kilowatt_hour:grams"
PRODUCT, CURRENCY = "gpu_name", "currency"
_MEMORY, _USER = "gpu_process_memory_used_bytes", "workload_user"
_OWNER_LABELS = (*JOB_LABELS, _USER, PRODUCT)
_OF_USER = ("workload_namespace", _USER, PRODUCT)


def by_user(name: str) -> str:
    """Return the name of the series by namespace and user in place of job."""
    return name.replace(":job_", ":user_")


def recordings(
    s: Selectors, prices: Mapping[str, float], currency: str, pue: float | None, grams: float | None
) -> list[Recording]:
    """Return the rules; those of cost for the prices of a GPU hour by product, and the factors that are known."""
    factors = [(PUE, pue), (CO2E, grams)]
    rules = [
        *(Recording(PRICE, _number(price), {PRODUCT: name, CURRENCY: currency}) for name, price in prices.items()),
        *(Recording(name, _number(value)) for name, value in factors if value is not None),
        *_whose(s),
        Recording(HELD, _of_owners(s, gpus(s, s.lookback), 3600)),
        Recording(LOST, _of_owners(s, gpus(s, s.lookback, "cause"), 3600, "cause")),
        Recording(USED, f"{HELD} - on ({s.keys(*_OWNER_LABELS)}) sum without (cause) ({LOST})"),
        Recording(ENERGY, _of_owners(s, _energy(s), 3.6e6)),
    ]
    if prices:
        priced = f"* on ({PRODUCT}) group_left ({CURRENCY}) {PRICE}"
        rules += [
            Recording(HELD_COST, f"{HELD} {priced}"),
            Recording(LOST_COST, f"sum without (cause) ({LOST}) {priced}"),
        ]
    of_jobs = {rule.record: [*_OF_USER] for rule in rules if ":job_" in rule.record}
    of_jobs[LOST].append("cause")
    for name in of_jobs.keys() & {HELD_COST, LOST_COST}:
        of_jobs[name].append(CURRENCY)
    return [*rules, *(Recording(by_user(n), f"sum by ({s.keys(*labels)}) ({n})") for n, labels in of_jobs.items())]


def _number(value: float) -> str:
    return f"vector({value!r})"


def _whose(s: Selectors) -> list[Recording]:
    """Return the rules for the user, the product of the GPU and the job of each process, as far as they are known."""
    process = s.keys("process")

    def most(label: str, expr: str) -> str:
        return f"topk by ({process}) (1, count by ({process}, {label}) ({expr})) > bool 0"

    def first(*exprs: str) -> str:
        return f"\nor on ({process}) ".join(exprs)

    def also(known: str, label: str, name: str) -> str:
        return first(f"(({known}) * on ({process}) group_left ({label}) {name})", known)

    infos = (s(name, s.memory, **{_USER: HAS_JOB}) for name in ("gpu_process_host_info", "gpu_process_info"))
    memory = f"last_over_time({s(_MEMORY, s.memory)})"
    names = f"max by ({s.gpu}, name) (last_over_time({s('gpu_info', s.memory)}))"
    product = f'label_replace({names}, "{PRODUCT}", "$1", "name", "(.*)")'
    # Matchers of jobs select none of the processes without one.
    owned = f"{PROCESS_JOB}{{{s.job_matchers}}}" if s.job_matchers else first(PROCESS_JOB, TRAINING)
    return [
        Recording(_PROCESS_USER, first(*(most(_USER, f"last_over_time({info})") for info in infos))),
        Recording(_PROCESS_GPU, most(PRODUCT, f"{memory} * on ({s.gpu}) group_left ({PRODUCT}) {product}")),
        Recording(_PROCESS_OWNER, also(owned, _USER, _PROCESS_USER)),
        Recording(OWNER, also(_PROCESS_OWNER, PRODUCT, _PROCESS_GPU)),
    ]


def _of_owners(s: Selectors, expr: str, unit: float, *more: str) -> str:
    """Return the sum by owner of a mean over the last minutes, from the evaluation before to this one."""
    return f"{s.evaluation_interval / unit!r} * {s.by_job('sum', expr, *more, of=(OWNER, *_OWNER_LABELS))}"


def _energy(s: Selectors) -> str:
    """Return the watts of the GPUs of each training; those of a GPU are divided by the number of its programs."""
    held = f"max by ({s.keys('process', 'instance', 'uuid')}) (last_over_time({s(_MEMORY, s.lookback)}))"
    # The driver counts, whatever becomes of exporters, until it is loaded again. A fall to more than a GPU can use in
    # the time is no such reset: then the readings of its power count.
    joules, power, window = "gpu_energy_joules_total", "gpu_power_watts", s.lookback
    now = f"max by ({s.gpu}) (last_over_time({s(joules, window)}))"
    before = f"max by ({s.gpu}) (last_over_time({s(joules, window)} offset {format_duration(window)}))"
    rate, read = f"max by ({s.gpu}) ({s.rate(joules, window)})", f"max by ({s.gpu}) (avg_over_time({s(power, window)}))"
    limit = f"max by ({s.gpu}) (max_over_time({s('gpu_power_limit_watts', window)}))"
    risen = f"({rate} unless on ({s.gpu}) {rate} > on ({s.gpu}) 2 * {limit})"
    watts = f"((({now} - {before}) >= 0) / {window} or {risen} or {read})"
    each = f"({held} > bool -1) * on ({s.gpu}) group_left () ({watts} / count by ({s.gpu}) ({held}))"
    return f"sum by ({s.keys('process')}) ({each} {s.on_process('and', TRAINING)})"
