"""Verdict on each training process: gauges of the current verdict, and integrals over its lifetime."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpugauge.base.logline import Condition, fields
from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.collectors.training.advice import ADVICE, Advices, Texts
from gpugauge.collectors.training.nccl import INSPECTOR, NCCL, Asker, Inspector
from gpugauge.collectors.training.verdict_rows import LASTING, LIVE, Account
from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.metric import LabelValues, families
from gpugauge.node import training
from gpugauge.node.node import Judged, Verdict
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Section
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.facts import Progress, evidence, processes
from gpugauge.verdict.gain import gains, of_loader
from gpugauge.verdict.judge import judge
from gpugauge.verdict.loader_facts import load
from gpugauge.verdict.loaders import BUSY_CPUS, diagnose
from gpugauge.verdict.meter import PhaseMeter
from gpugauge.verdict.mfu import model_flops_utilization
from gpugauge.verdict.shares import step_shares
from gpugauge.verdict.spins import Counted, Spins
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS, STALLED_SECONDS, begun, trains_on_cpu
from gpugauge.wire.shares import NAMED_PHASES
from gpugauge.workload.inspector import Dump

log = logging.getLogger("gpugauge.verdict")

_INTERVAL_SECONDS = 5.0  # between two verdicts
_TOLERANCE_SECONDS = 0.5  # by which a verdict can be earlier: ticks are 1 s to 5 s apart, and not exactly periodic
_CLOCK_SECONDS = 0.05  # by which the clocks of a session and of the ticks differ
_LINGER_SECONDS = 300.0  # time for which the integrals of an ended process are exported


class VerdictCollector(RegisteredCollector):
    """Runs after all others, whose parts of the node it reads: every five seconds, over a window of a minute."""

    name = "verdict"
    metrics = LIVE + ADVICE + NCCL + INSPECTOR + LASTING

    def __init__(
        self,
        stalled_seconds: float = STALLED_SECONDS,
        asker: Asker | None = None,
        site: Callable[[], Site] = lambda: ANY_SITE,
    ) -> None:
        self.stalled_seconds, self._asker, self._asks = stalled_seconds, asker, False
        self._advices, self._inspector = Advices(site), Inspector()
        self._window, self._spins = Window(), Spins()
        self._spinning: dict[str, float] = {}  # seconds by process
        self._failing = Condition(log, logging.ERROR)
        self._accounts: dict[str, Account] = {}
        self._due = 0.0
        self._began: float | None = None  # time of the first verdict
        self._before: float  # time of the last verdict
        self._section, self._live = Section(self.name, ()), dict[str, Judged]()

    @classmethod
    def create(cls, sources: Sources) -> VerdictCollector:
        """Return a collector that can ask NCCL about processes of this machine, with advice for its place."""
        return cls(asker=Asker(sources.procfs), site=sources.site)

    def configure(self, settings: Settings) -> None:
        """Apply the settings of the verdict."""
        self.stalled_seconds, self._asks = settings.verdict.stalled_seconds, settings.verdict.enable_ras
        self._inspector.folder = settings.verdict.nccl_inspector_dir

    def collect(self, tick: Tick) -> Section:
        """Return the verdicts; the same section until the next verdict."""
        if tick.monotonic >= self._due:
            self._judge_all(tick)
        tick.node.judged = self._live
        return self._section

    def _judge_all(self, tick: Tick) -> None:
        if self._began is None:
            self._began = self._before = tick.monotonic
        self._due = tick.monotonic + _INTERVAL_SECONDS - _TOLERANCE_SECONDS
        self._window.add(tick.node)
        present = processes(tick.node)
        asker, outside = self._asker if self._asks else None, present - tick.node.sessions.keys()
        counted = asker.ask(tick.node, self._spins.suspects & outside, tick.monotonic) if asker else {}
        self._spinning = self._spins.update(self._window, outside, tick.monotonic, counted)
        written = self._inspector.read(tick.node)
        failed = {process: error for process in present if (error := self._judged(process, tick))}
        self._end(present, tick)
        self._before = tick.monotonic
        accounts: list[tuple[LabelValues, Account]] = [((p,), a) for p, a in sorted(self._accounts.items())]
        self._live = {process: account.judged for (process,), account in accounts if account.live}
        live: list[tuple[LabelValues, Judged]] = [((p,), judged) for p, judged in self._live.items()]
        said: list[tuple[LabelValues, Counted]] = [((process,), each) for process, each in sorted(counted.items())]
        tick.node.judged = self._live
        texts = self._advices.of(tick.node, failed)
        to_do: list[tuple[LabelValues, Texts]] = [((process,), each) for process, each in texts.items()]
        timed: list[tuple[LabelValues, Dump]] = [((process,), dump) for process, dump in sorted(written.items())]
        rows = families(LIVE, live) + families(ADVICE, to_do) + families(NCCL, said) + families(INSPECTOR, timed)
        rows += families(LASTING, accounts)
        self._section = Section(self.name, rows)
        if failed:
            process, error = next(iter(failed.items()))
            self._failing.failing("a process cannot be judged", process=process, processes=len(failed), error=error)
        else:
            self._failing.recovered("all processes are judged")

    def _judged(self, process: str, tick: Tick) -> str:
        """Judge a process and return "", or the error: what one program reports must not cost the others a verdict."""
        try:
            self._judge(process, tick)
        except Exception as error:  # noqa: BLE001  (the condition logs it)
            return f"{type(error).__name__}: {error}"
        return ""

    def _judge(self, process: str, tick: Tick) -> None:
        now = tick.monotonic
        new = process not in self._accounts
        account = self._accounts.setdefault(process, Account(Judged(Verdict("unknown", "outside")), now))
        if account.meter is None:
            account.meter = self._meter(process, now, new=new)
        session = self._session(process)
        name = session.hello.session if session else ""
        account.progress = self._progress(process, account.progress, tick)
        if account.session not in ("", name):  # a program in the place of another one (exec) starts again
            account.began, account.earlier = False, account.progress.count if account.progress else 0
            account.loader = None
        account.session = name
        found = evidence(self._window, process, now, tick.timestamp, account.progress)
        found = found._replace(spins=self._spinning.get(process), slow_network=process in self._inspector.slow)
        before = account.judged
        verdict = judge(found, before.verdict, self.stalled_seconds)
        account.run, account.excuses = training.run(session) if session else None, verdict.state in NAMED_PHASES
        ranks = (a for a in self._accounts.values() if a.run == account.run and a.live)
        if verdict.state == "stalled" and account.run and any(rank.excuses for rank in ranks):
            verdict = judge(found._replace(excused=True), before.verdict, self.stalled_seconds)
        account.judged = Judged(verdict)
        account.held, account.on_cpu = found.held, trains_on_cpu(found)
        waiting = found.phase_age or 0.0 if found.phase == "loading" else 0.0
        elapsed = self._spend(process, account, now, waiting)
        own = account.progress is None or account.progress.count > account.earlier
        account.live, account.seen, account.began = True, now, begun(found) and own
        watched = account.began and verdict.state != "stalled" and found.window >= MIN_EVIDENCE_SECONDS
        loading = load(self._window, process, found) if watched else None
        on_gpu = account.began and not account.on_cpu
        shares, rest = step_shares(self._window, process) if account.began else ({}, {})
        shares = _shares(verdict, shares)
        loader = of_loader(diagnose(loading, account.loader), verdict) if loading else None
        # The number of workers is kept while the training does not wait, or waits for something else.
        if loader and (loader.speedup or 0.0) > 1.0:
            account.loader = loader
        elif loader and loader.reason == BUSY_CPUS:
            account.loader = (account.loader or loader)._replace(reason=BUSY_CPUS)
        account.judged = Judged(
            verdict,
            shares,
            gains(found, verdict, before.gains) if account.began else {},
            model_flops_utilization(self._window, process) if on_gpu else None,
            loader,
            rest if shares else {},
            found.known() if verdict.limited_by else {},  # most processes have no evidence to show
            found.window < MIN_EVIDENCE_SECONDS,
        )
        account.summary.add_load([device.busy for device in found.devices if device.busy is not None], elapsed)
        peaks = training.by_uuid(session, lambda d: d.allocated_peak) if session else {}
        account.summary.peak_memory = max(account.summary.peak_memory, float(sum(peaks.values())))

    def _meter(self, process: str, now: float, new: bool) -> PhaseMeter | None:
        """Return a meter of a session. It leaves out the time before the daemon, and time that is already counted."""
        reported = self._session(process)
        seconds = training.phases(reported) if reported else {}
        session = sum(seconds.values())
        if reported is None or not session:
            return None
        assert self._began is not None
        counted = session if new and session <= now - self._began + _CLOCK_SECONDS else 0.0
        if not new:
            counted = min(session, now - self._before)
        meter = PhaseMeter()
        meter.skip(seconds, training.waits(reported), 1.0 - counted / session)
        return meter

    def _spend(self, process: str, account: Account, now: float, waiting: float | None) -> float:
        """Count the time since the last verdict, and return it in seconds. `waiting`: see PhaseMeter.advance."""
        verdict = account.judged.verdict
        if account.meter is None:
            spent = {verdict.state: min(now - self._before, 3 * _INTERVAL_SECONDS)}
        else:
            session = self._session(process)
            spent = account.meter.advance(
                (training.phases(session) if session else {}) or account.meter.seconds,
                (training.waits(session) if session else {}) or account.meter.waits,
                verdict.state,
                began=account.began,
                on_cpu=account.on_cpu,
                waiting=waiting,
            )
        summary, elapsed = account.summary, sum(spent.values())
        for name, seconds in spent.items():
            summary.seconds[name] += seconds
        summary.held += elapsed * account.held
        if account.held and not summary.lost:
            summary.lost = dict.fromkeys(CAUSES, 0.0)
        for cause, share in verdict.causes.items() if account.held else ():
            summary.lost[cause] += elapsed * account.held * share
        return elapsed

    def _session(self, process: str) -> Session | None:
        return self._window.node.sessions.get(process)

    def _progress(self, process: str, before: Progress | None, tick: Tick) -> Progress | None:
        session = self._session(process)
        steps, batches = (training.steps(session), training.batches(session)) if session else (None, None)
        if session is None or (steps is None and batches is None):
            return before
        count = (steps or 0) + (batches or 0)
        if before and before.count == count:
            return before
        moments = (training.last_step(session), session.record.since if session.record else None)
        known = [moment for moment in moments if moment is not None]
        # After a start of the daemon, the time without progress includes the time before the start. The time of the
        # last batch is not exported; its wait ended with a new phase.
        age = max(0.0, tick.timestamp - max(known)) if before is None and known else 0.0
        return Progress(count, tick.monotonic - age)

    def _end(self, present: set[str], tick: Tick) -> None:
        now = tick.monotonic
        ended = {process for process, session in tick.node.sessions.items() if not session.connected}
        for process in ended - self._accounts.keys():
            # It began and ended since the last verdict.
            if (meter := self._meter(process, now, new=True)) is not None:
                judged, on_cpu = Judged(Verdict("starting", "inside")), not self._used_gpu(process)
                self._accounts[process] = Account(judged, now, meter=meter, on_cpu=on_cpu)
        for process, account in list(self._accounts.items()):
            if process not in present and account.live:
                account.live = False
                if account.meter is not None:
                    self._spend(process, account, now, waiting=None)
                summary = account.summary
                if summary.seconds.keys() & {"training", "training_on_cpu"}:
                    seconds = round(sum(summary.seconds.values()))
                    log.info("training ended", extra=fields(process=process, seconds=seconds, **summary.line()))
            if now - account.seen > _LINGER_SECONDS and process not in ended:
                del self._accounts[process]

    def _used_gpu(self, process: str) -> bool:
        """Return whether a process that has ended used a GPU, by the allocator's counters, which remain."""
        session = self._session(process)
        if session is None:
            return False
        facts = session.facts
        uncounted = facts.get("allocator") == "cudaMallocAsync" and facts.get("current_device")
        return bool(uncounted or training.by_uuid(session, lambda d: d.ooms))


def _shares(verdict: Verdict, found: dict[str, float]) -> dict[str, float]:
    """Return the shares of a training; while it is stalled, none if it is not known what it waits for."""
    return {} if verdict.state == "stalled" and not any(found[part] for part in found.keys() - {"rest"}) else found
