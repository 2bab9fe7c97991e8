"""How busy the engines of a GPU are: counters over every sample that the driver kept, and a mean for the eye."""

from __future__ import annotations

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.busy import BUCKETS, EngineAccount
from gpugauge.driver.api import ENGINES, Device, DeviceReading, Reply
from gpugauge.metric import NONE, RATIO, SECONDS, HistogramValue, LabelValues, Metric, Table, families, scaled
from gpugauge.snapshot import Section

# The percentage that the driver says of each engine's last sample period.
_PERCENT = {engine: f"{engine}_utilization_percent" for engine in ENGINES} | {"gpu": "utilization_percent"}
_FIELDS = tuple(_PERCENT.items())
# Seconds without even an empty answer from a ring after which the percentages take its place, and the other way round.
_SILENT = 30.0
_SAMPLES = "nvmlDeviceGetSamples"
_RATES = "nvmlDeviceGetUtilizationRates"
_ENGINE_RATES = f"{_RATES}, nvmlDeviceGet{{Encoder,Decoder,Jpg,Ofa}}Utilization"


class _Engine:
    """An account and where it is fed from."""

    def __init__(self, name: str, *, polled: bool) -> None:
        self.polled = polled
        self.fed = float("-inf")
        self.account = EngineAccount(polled=polled, distribution=name == "gpu")

    def feed_from(self, *, polled: bool, now: float) -> None:
        self.fed = now
        if self.polled != polled:
            self.polled = polled
            self.account.restart(polled=polled)


class _State:
    """The engines of one GPU. It stays when the GPU is lost, so that its counters go on where they were."""

    def __init__(self) -> None:
        self.now, self.worker = 0.0, 0
        self.engines: dict[str, _Engine] = {}
        self.live: list[tuple[str, EngineAccount]] = []
        self.percents: dict[str, int] = {}
        self.reading = DeviceReading()
        self.told = True  # a mean that was shown is what the driver said last, for want of samples

    def take(self, reply: Reply, now: float, unix: float) -> bool:
        """Feed every engine from its ring, or from the percentage where it has none; tell whether any was."""
        if reply.failed is not None:
            self.percents.clear()
            return False
        fed = False
        polled = self._read_percents(reply)
        anew = reply.worker != self.worker
        if reply.samples:
            self.worker = reply.worker
        for engine, samples in reply.samples.items():
            if engine not in _PERCENT:
                continue
            known = self.engines.get(engine)
            if known is None:
                known = self.engines[engine] = _Engine(engine, polled=False)
            known.feed_from(polled=False, now=now)
            known.account.drain(samples, now, self.percents.get(engine), unix, anew=anew)
            fed = True
        for engine, percent in polled.items():
            if engine in reply.samples:
                continue
            known = self.engines.get(engine)
            if known is None:
                known = self.engines[engine] = _Engine(engine, polled=True)
            if known.polled or now - known.fed > _SILENT:
                known.feed_from(polled=True, now=now)
                known.account.poll(percent, now)
                fed = True
        return fed

    def _read_percents(self, reply: Reply) -> dict[str, int]:
        """Return what this answer tells; remember it until the driver is asked again."""
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

    def show(self, reading: DeviceReading, now: float) -> None:
        """Take what the rows need besides the accounts: what the GPU told last, and which engines are being fed."""
        self.reading, self.now, self.told = reading, now, False
        self.live = [(name, e.account) for name, e in self.engines.items() if now - e.fed <= _SILENT]

    def mean(self, engine: str, percent: int | None) -> float | None:
        """Return the mean over the last seconds sampled, without a ring the percentage of the last sample."""
        known = self.engines.get(engine)
        sampled = known.account.mean(self.now) if known and not known.polled else None
        if sampled is None:
            self.told = True
            return scaled(percent, 0.01)
        return sampled

    def silent(self, now: float) -> bool:
        """Whether an engine that was shown is not fed any more."""
        return any(now - self.engines[name].fed > _SILENT for name, _ in self.live)

    def histogram(self, engine: str) -> HistogramValue | None:
        """Return the distribution of an engine's samples."""
        return next((account.histogram for name, account in self.live if name == engine), None)

    def sources(self) -> dict[tuple[str, ...], int]:
        """Return 1 by engine and what feeds its account."""
        return {(name, "polled" if self.engines[name].polled else "samples"): 1 for name, _ in self.live}


_device = Table("uuid")

METRICS: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_utilization_ratio",
        "Share of the last seconds in which at least one kernel was running.",
        RATIO,
        lambda c: c.mean("gpu", c.reading.utilization_percent),
        source=f"{_SAMPLES}, {_RATES}",
    ),
    _device.gauge(
        "gpu_memory_utilization_ratio",
        "Share of the last seconds in which device memory was being read or written.",
        RATIO,
        lambda c: c.mean("memory", c.reading.memory_utilization_percent),
        source=f"{_SAMPLES}, {_RATES}",
    ),
    _device.counter(
        "gpu_busy_seconds_total",
        "Time in which the engine was busy, integrated from every sample that the driver kept. Divide its rate by that "
        "of gpu_observed_seconds_total.",
        SECONDS,
        lambda c: {name: account.busy for name, account in c.live},
        "engine",
        source=f"{_SAMPLES}, {_ENGINE_RATES}",
    ),
    _device.counter(
        "gpu_observed_seconds_total",
        "Time that the samples behind gpu_busy_seconds_total cover, idle time included.",
        SECONDS,
        lambda c: {name: account.observed for name, account in c.live},
        "engine",
        source=f"{_SAMPLES}, {_ENGINE_RATES}",
    ),
    _device.counter(
        "gpu_unobserved_seconds_total",
        "Time of which nothing is known: samples were overwritten, or the GPU did not answer.",
        SECONDS,
        lambda c: {name: account.unobserved for name, account in c.live},
        "engine",
        source=f"{_SAMPLES}, {_ENGINE_RATES}",
    ),
    _device.gauge(
        "gpu_busy_source",
        "Where gpu_busy_seconds_total comes from: samples that the driver kept, or its percentage polled; always 1.",
        NONE,
        lambda c: c.sources(),
        *("engine", "source"),
    ),
    _device.histogram(
        "gpu_utilization_sample_ratio",
        "The samples of the gpu engine, observed idle gaps as samples of zero: tells a steady 50 % from 0 and 100.",
        RATIO,
        lambda c: c.histogram("gpu"),
        BUCKETS,
        source=f"{_SAMPLES}, {_RATES}",
    ),
)


class UtilizationCollector:
    """Rows by uuid, new with every answer that holds samples, and with each where there are none to have."""

    name = "utilization"
    metrics = METRICS

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._seen: list[tuple[str, bool, int]] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Take every answer into the accounts; return the same section while nothing is fed by one."""
        fed = False
        for reply in tick.replies:
            if reply.uuid:
                state = self._states.get(reply.uuid)
                if state is None:
                    state = self._states[reply.uuid] = _State()
                received = reply.received or tick.monotonic
                fed |= state.take(reply, received, tick.timestamp - tick.monotonic + received)
        seen = [self._shown(device, tick.monotonic) for device in tick.driver.devices]
        if fed or seen != self._seen:
            subjects = self._subjects(tick)
            self._section = Section(self.name, families(METRICS, subjects))
            self._seen = [self._shown(device, tick.monotonic) for device in tick.driver.devices]
        return self._section

    def _shown(self, device: Device, now: float) -> tuple[str, bool, int]:
        """Return what the rows of a GPU hang on besides the accounts; -1 for readings that are not shown."""
        state = self._states.get(device.uuid)
        told = state is None or state.told or state.silent(now)
        return device.uuid, device.up, device.generations.get("fast", 0) if told else -1

    def busy_seconds(self, uuid: str) -> float | None:
        """Return the busy seconds of a GPU's gpu engine so far, None if they are not counted."""
        state = self._states.get(uuid)
        return next((account.busy for name, account in state.live if name == "gpu"), None) if state else None

    def _subjects(self, tick: Tick) -> list[tuple[LabelValues, _State]]:
        subjects: list[tuple[LabelValues, _State]] = []
        for device in tick.driver.devices:
            if device.up:
                state = self._states.get(device.uuid) or _State()
                state.show(device.reading, tick.monotonic)
                subjects.append(((device.uuid,), state))
        return subjects
