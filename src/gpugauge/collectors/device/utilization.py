"""Utilization of the engines of GPUs: counters over all samples that the driver keeps, and means over 5 seconds."""

from __future__ import annotations

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.device.busy import BUCKETS, EngineAccount
from gpugauge.driver.api import Device, DeviceReading, Reply
from gpugauge.driver.codes import ENGINES
from gpugauge.metric import HistogramValue, Metric, Table, families, scaled
from gpugauge.node.node import Load
from gpugauge.snapshot import Section

SAMPLES, POLLED, ACCUMULATOR = "samples", "polled", "accumulator"  # the sources of an account
# Reading with the percentage of each engine's last sample period.
_PERCENT = {engine: f"{engine}_utilization_percent" for engine in ENGINES} | {"gpu": "utilization_percent"}
_FIELDS = tuple(_PERCENT.items())
# After this time without a reply from a sample ring, even an empty one, the percentages replace it, and vice versa.
_SOURCE_TIMEOUT_SECONDS = 30.0
_SAMPLES = "nvmlDeviceGetSamples"
_RATES = "nvmlDeviceGetUtilizationRates"
_ENGINE_RATES = f"{_RATES}, nvmlDeviceGet{{Encoder,Decoder,Jpg,Ofa}}Utilization"


class _Engine:
    """The account of one engine and its source."""

    def __init__(self, name: str, source: str) -> None:
        self.source = source
        self.updated = float("-inf")  # monotonic seconds
        self.account = EngineAccount(polled=source == POLLED, distribution=name == "gpu")

    def use_source(self, source: str, now: float) -> None:
        self.updated = now
        if self.source != source:
            self.source = source
            self.account.restart(polled=source == POLLED)


class _State:
    """The engines of one GPU. It is kept when the GPU is lost, so that the counters continue."""

    def __init__(self) -> None:
        self.now, self.worker = 0.0, 0
        self.engines: dict[str, _Engine] = {}
        self.live: dict[str, EngineAccount] = {}
        self.percents: dict[str, int] = {}
        self.reading = DeviceReading()
        self.shows_percentage = True  # a mean in the section is the driver's last percentage, for lack of samples

    def add(self, reply: Reply, now: float, unix: float) -> bool:
        """Update every engine from its sample ring, or without one from its percentage. Return whether any was."""
        if reply.failed is not None:
            self.percents.clear()
            return False
        updated = False
        polled = self._read_percents(reply)
        reopened = reply.worker != self.worker
        if reply.samples:
            self.worker = reply.worker
        for engine, samples in reply.samples.items():
            if engine not in _PERCENT:
                continue
            known = self._engine(engine, SAMPLES)
            known.use_source(SAMPLES, now)
            known.account.drain(samples, now, self.percents.get(engine), unix, reopened=reopened)
            updated = True
        fast = reply.values.get("fast", {})
        if seconds := fast.get("utilization_mean_seconds"):
            known = self._engine("gpu", ACCUMULATOR)
            known.use_source(ACCUMULATOR, now)
            known.account.add(fast["utilization_mean_percent"] / 100, seconds, now)
            polled.pop("gpu", None)
            updated = True
        for engine, percent in polled.items():
            if engine in reply.samples:
                continue
            known = self._engine(engine, POLLED)
            if known.source == POLLED or now - known.updated > _SOURCE_TIMEOUT_SECONDS:
                known.use_source(POLLED, now)
                known.account.poll(percent, now)
                updated = True
        return updated

    def _engine(self, name: str, source: str) -> _Engine:
        known = self.engines.get(name)
        if known is None:
            known = self.engines[name] = _Engine(name, source)
        return known

    def _read_percents(self, reply: Reply) -> dict[str, int]:
        """Return the percentages in a reply, and keep them until the next reply that has them."""
        found = {}
        for values in reply.values.values():
            for engine, name in _FIELDS:
                if name in values:
                    found[engine] = values[name]
        for engine, name in _FIELDS:
            if name in reply.errors:
                self.percents.pop(engine, None)
        self.percents.update(found)
        return found

    def prepare(self, reading: DeviceReading, now: float) -> None:
        """Set what the rows read besides the accounts: the last reading, and the engines with a live source."""
        self.reading, self.now, self.shows_percentage = reading, now, False
        live = {name: e.account for name, e in self.engines.items() if now - e.updated <= _SOURCE_TIMEOUT_SECONDS}
        self.live = live
        self.ratio = self.mean("gpu", reading.utilization_percent)

    def mean(self, engine: str, percent: int | None) -> float | None:
        """Return the mean over the last seconds sampled; without samples, the driver's last percentage as a ratio."""
        known = self.engines.get(engine)
        sampled = known.account.mean(self.now) if known and known.source != POLLED else None
        if sampled is None:
            self.shows_percentage = True
            return scaled(percent, 0.01)
        return sampled

    def timed_out(self, now: float) -> bool:
        """Return whether a live engine has no source any more."""
        return any(now - self.engines[name].updated > _SOURCE_TIMEOUT_SECONDS for name in self.live)

    def load(self) -> Load | None:
        """Return the load of the `gpu` engine, None without a live source."""
        account = self.live.get("gpu")
        return Load(account.busy, account.observed) if account else None

    def sources(self) -> dict[tuple[str, ...], int]:
        """Return 1 by engine and source of its account."""
        return {(name, self.engines[name].source): 1 for name in self.live}

    def distribution(self) -> HistogramValue | None:
        """Return the histogram of the samples; an accumulator has only means."""
        engine = self.engines["gpu"] if "gpu" in self.live else None
        return engine.account.histogram if engine and engine.source != ACCUMULATOR else None


_device = Table["_State"]("uuid")
_sampled = Table["_State"]("uuid", source=f"{_SAMPLES}, {_RATES}")
_engine = Table["_State"]("uuid", "engine", source=f"{_SAMPLES}, {_ENGINE_RATES}")

METRICS: tuple[Metric, ...] = (
    UTILIZATION := _sampled.gauge(
        "gpu_utilization_ratio",
        "Share of the last 5 seconds in which at least one kernel was running.",
        lambda c: c.ratio,
    ),
    _sampled.gauge(
        "gpu_memory_utilization_ratio",
        "Share of the last 5 seconds in which device memory was being read or written.",
        lambda c: c.mean("memory", c.reading.memory_utilization_percent),
    ),
    BUSY := _engine.counter(
        "gpu_busy_seconds_total",
        "Time in which the engine was busy, integrated from all samples of the driver. Divide its rate by that of "
        "gpu_observed_seconds_total.",
        lambda c: {name: account.busy for name, account in c.live.items()},
    ),
    OBSERVED := _engine.counter(
        "gpu_observed_seconds_total",
        "Time covered by the samples of gpu_busy_seconds_total, idle time included.",
        lambda c: {name: account.observed for name, account in c.live.items()},
    ),
    _engine.counter(
        "gpu_unobserved_seconds_total",
        "Time without samples: they were overwritten, or the GPU did not respond.",
        lambda c: {name: account.unobserved for name, account in c.live.items()},
    ),
    _device.gauge(
        "gpu_busy_source",
        "Source of gpu_busy_seconds_total: the driver's samples, its accumulator, which is exact, or its percentage, "
        "which is polled; always 1.",
        lambda c: c.sources(),
        *("engine", "source"),
    ),
    _sampled.histogram(
        "gpu_utilization_sample_ratio",
        "Histogram of the driver's samples of the gpu engine; idle gaps count as samples of 0. It distinguishes a "
        "steady load of 50 % from a load that alternates between 0 and 100 %.",
        lambda c: c.distribution(),
        BUCKETS,
    ),
)


class UtilizationCollector(RegisteredCollector):
    """Rows by uuid, new with every reply that has samples, or percentages of an engine without samples."""

    name = "utilization"
    metrics = METRICS

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._seen: list[tuple[str, bool, int]] | None = None
        self._loads: dict[str, Load] = {}
        self._ratios: dict[str, float] = {}
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Add every reply to the accounts. Return the same section while no account was updated."""
        updated = False
        for reply in tick.replies:
            if reply.uuid:
                state = self._states.get(reply.uuid)
                if state is None:
                    state = self._states[reply.uuid] = _State()
                received = reply.received or tick.monotonic
                updated |= state.add(reply, received, tick.timestamp - tick.monotonic + received)
        seen = [self._key(device, tick.monotonic) for device in tick.driver.devices]
        if updated or seen != self._seen:
            subjects = self._subjects(tick)
            self._section = Section(self.name, families(METRICS, subjects))
            self._seen = [self._key(device, tick.monotonic) for device in tick.driver.devices]
            self._loads = {uuid: load for (uuid,), state in subjects if (load := state.load())}
            self._ratios = {uuid: state.ratio for (uuid,), state in subjects if state.ratio is not None}
        tick.node.loads, tick.node.utilization = self._loads, self._ratios
        return self._section

    def _key(self, device: Device, now: float) -> tuple[str, bool, int]:
        """Return what the rows of a GPU depend on besides the accounts; -1 if they do not contain the reading."""
        state = self._states.get(device.uuid)
        reads = state is None or state.shows_percentage or state.timed_out(now)
        return device.uuid, device.up, device.generations.get("fast", 0) if reads else -1

    def busy_seconds(self, uuid: str) -> float | None:
        """Return the busy seconds of a GPU's `gpu` engine so far, None if they are not counted."""
        state = self._states.get(uuid)
        load = state.load() if state else None
        return load.busy if load else None

    def _subjects(self, tick: Tick) -> list[tuple[tuple[str], _State]]:
        subjects: list[tuple[tuple[str], _State]] = []
        for device in tick.driver.devices:
            if device.up:
                state = self._states.get(device.uuid) or _State()
                state.prepare(device.reading, tick.monotonic)
                subjects.append(((device.uuid,), state))
        return subjects
