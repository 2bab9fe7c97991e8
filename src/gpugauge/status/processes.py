"""The processes that use GPUs or have torch loaded, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpugauge.base import serving
from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.sessions.inquiry import ENDED
from gpugauge.sessions.session import Session
from gpugauge.status.advice import advice_of, steps_of, words, words_of_gain
from gpugauge.status.details import JUDGED_SECONDS
from gpugauge.status.ended import MAX_LISTED, with_end
from gpugauge.status.history import History, is_wasted, lost_of
from gpugauge.status.identity import identities, workload
from gpugauge.status.measured_advice import CROWDED, Subject
from gpugauge.status.model import Frame, Inside, ProcessStatus, Standstill, Use
from gpugauge.status.problem import section_of_training
from gpugauge.status.words import largest, limit_words, state_words
from gpugauge.verdict.causes import found_by
from gpugauge.verdict.ranks import Position, behind
from gpugauge.wire.shares import NAMED_PHASES

_WINDOW_SECONDS = 300.0
_ENDING_SECONDS = 60.0
"""For which a process that has ended may still be among the others. Later it runs, and only its connection ended."""
_SILENT_SECONDS = 120.0
"""After this time without a report, a program with the hook is no longer only starting."""
_WORKING = frozenset({"training", "evaluating", "generating", "checkpointing"})
_ILL = frozenset({"bad", "poor"})
_FAILING = frozenset({"stalled", "training_on_cpu"})


def processes_of(
    node: Node, history: History, now: float, known: Mapping[str, ProcessStatus] | None = None, site: Site = ANY_SITE
) -> list[ProcessStatus]:
    """Return the processes that the driver, the host or the hook reports, and the trainings that have ended. `now` is
    the Unix time of the snapshot, `known` who they are, if the node does not know; `site` is the place of the daemon.
    """
    ended = {process: s.ended_at for process, s in node.sessions.items() if s.ended_at is not None}
    inside = {p for p in node.sessions if p not in ended or now - ended[p] < _ENDING_SECONDS}
    alive = node.holders | node.hosts.keys() | (node.sessions.keys() - ended.keys())
    gone = set(sorted(ended.keys() - alive, key=lambda process: -ended[process])[:MAX_LISTED])
    devices: dict[str, dict[str, Use]] = {}
    for (process, uuid), use in node.uses.items():
        if process in alive:
            load = history.process_load(process, uuid, _WINDOW_SECONDS)
            devices.setdefault(process, {})[uuid] = Use(use.memory, load)
    result, still = [], standstills(node)
    every = identities(node, alive | gone) if known is None else known
    jobs = _jobs(node, every, still)
    for process, who in every.items():
        if process in alive or process in gone:
            hooked = process in inside or process in gone
            if not hooked and process not in devices and serving.launches(who.command):
                continue  # its ranks are the training
            shown = replace(
                _process(who, node, history, hooked=hooked),
                mfu=node.judged[process].mfu if process in node.judged else None,
                devices=devices.get(process, {}),
                standstill=still.get(process),
            )
            silent = history.silent_seconds(process)
            if not hooked and shown.role in {"training", None} and _starts(who, process in node.hosts, shown, now):
                shown = replace(shown, starting=True, silent=silent is not None and silent >= _SILENT_SECONDS)
            if process in ended and hooked:
                result.append(with_end(_advised(shown, history), node.sessions[process]))
                continue
            run = training.run(node.sessions[process]) if process in node.sessions else None
            ranks, late = jobs.get(run, (0, ())) if run else (0, ())
            complete = ranks >= (shown.world_size or 0)
            shown = _judged(shown, history, Subject.of(shown, node, site)._replace(behind=late, complete=complete))
            if shown.starting:
                shown = replace(shown, judging_since=shown.started or now)
            elif process in inside:
                shown = _judging(shown, history.reporting_seconds(process), now)
            result.append(shown)
    return result


def _jobs(
    node: Node, every: Mapping[str, ProcessStatus], still: Mapping[str, Standstill]
) -> dict[tuple[str, ...], tuple[int, tuple[ProcessStatus, ...]]]:
    """Return by run the number of ranks here, and those that hold the others up."""
    found: dict[tuple[str, ...], tuple[int, tuple[ProcessStatus, ...]]] = {}
    for process, session in node.sessions.items():
        if run := training.run(session):
            ranks, late = found.get(run, (0, ()))
            at = still.get(process)
            who = (replace(every[process], standstill=at),) if at and at.behind and process in every else ()
            found[run] = ranks + session.connected, late + who
    return {run: (ranks, tuple(sorted(late, key=lambda p: p.rank or 0))) for run, (ranks, late) in found.items()}


def standstills(node: Node) -> dict[str, Standstill]:
    """Return where each rank is that makes no progress. None is behind while one is in a phase without steps."""
    ranks = {process: (run, session) for process, session in node.sessions.items() if (run := training.run(session))}
    found = {process: at for process, (_, session) in ranks.items() if (at := training.position(session))}
    jobs: dict[tuple[str, ...], dict[str, Position]] = {}
    for process, at in found.items():
        jobs.setdefault(ranks[process][0], {})[process] = at
    # A rank that was started again is alive.
    alive = {(run, session.facts.get("rank")) for run, session in ranks.values() if session.connected}
    for process, (run, session) in ranks.items():
        rank = session.facts.get("rank")
        if session.ended_at is not None and rank and run in jobs and (run, rank) not in alive:
            jobs[run][process] = found[process] = (ENDED, "")
    judged = {process: judged.verdict.state for process, judged in node.judged.items() if process in ranks}
    excused = {ranks[process][0] for process, state in judged.items() if state in NAMED_PHASES}
    late = {process for run, at in jobs.items() if run not in excused for process in behind(at)}
    return {
        process: _standstill(node.sessions[process], *at, process in late)
        for process, at in found.items()
        if at[0] != ENDED or process in late
    }


def _standstill(session: Session, position: str, function: str, late: bool) -> Standstill:
    inquiry = session.inquiry
    if inquiry is None or session.ended_at is not None:
        return Standstill(position=position, since=session.ended_at or 0.0, behind=late)
    sent = inquiry.answer.frames if inquiry.answer else ()
    frames = tuple(Frame(file=f.file, line=f.line, function=f.function, own=bool(f.own)) for f in sent)
    return Standstill(
        position=position,
        function=function or None,
        since=inquiry.progress,
        at=inquiry.answered,
        stopped=inquiry.stopped,
        behind=late,
        stack=frames,
    )


def _judging(process: ProcessStatus, seconds: float | None, now: float) -> ProcessStatus:
    """Return a process that has reported for some seconds; marked, and without advice, if there is no verdict yet."""
    early = process.level == "none" or (seconds is not None and seconds < JUDGED_SECONDS)
    if process.limited_by or process.state in _DECIDED or not early:
        return process
    plain = replace(process, advice=None, advice_steps=(), gain_words=None, changes=(), runbook=None)
    return replace(plain, judging_since=now - (seconds or 0.0), level="none")


_SCANNED_SECONDS = 30.0
"""After this time a process has been scanned, if the daemon sees it: then it is known whether it has the hook."""
_DECIDED = frozenset({"stalled", "held_idle", "not_training"})


def _starts(who: ProcessStatus, scanned: bool, process: ProcessStatus, now: float) -> bool:
    """Return whether a process that has not reported yet may still do so: it has the hook, or is too young to know."""
    young = process.started is not None and now - process.started < _SCANNED_SECONDS
    return who.hook or (young and not scanned)


def _process(known: ProcessStatus, node: Node, history: History, *, hooked: bool) -> ProcessStatus:
    process, session = known.process, node.sessions.get(known.process)
    known = replace(known, hook=hooked, role=_role(known, hooked=hooked))
    if session is None:
        return known
    return replace(
        known,
        # The start of the process is known only of those on GPUs.
        started=session.hello.started if known.started is None else known.started,
        steps=training.steps(session),
        step_seconds=history.step_seconds(process, _WINDOW_SECONDS),
        samples_per_second=history.per_second(process, lambda pace: pace.samples, _WINDOW_SECONDS),
        tokens_per_second=history.per_second(process, lambda pace: pace.tokens, _WINDOW_SECONDS),
        last_step=training.last_step(session),
        phase=training.phase(session),
        loader=training.loader_options(session),
        inside=_inside(session),
    )


def _inside(session: Session) -> Inside:
    ooms, retries = (training.by_uuid(session, figure) for figure in (lambda d: d.ooms, lambda d: d.retries))
    return Inside(
        torch=session.facts.get("torch") or None,
        gpu_build=bool(session.facts.get("cuda") or session.facts.get("hip")),
        parameter_bytes=training.parameter_bytes(session),
        ooms=sum(ooms.values()) if ooms else None,
        alloc_retries=sum(retries.values()) if retries else None,
        recorder=bool(session.snap.groups) if session.snap and session.snap.answers else None,
    )


def _judged(process: ProcessStatus, history: History, subject: Subject) -> ProcessStatus:
    judged = subject.judged
    verdict, parts, rest = (judged.verdict, judged.shares, judged.rest) if judged else (None, {}, {})
    state, name, lost = (verdict.state, verdict.limited_by, verdict.lost) if verdict else (None, None, None)
    wasted = is_wasted(lost_of(judged) if judged else 0.0, before=history.wasted(process.process))
    if state == "held_idle" and not (wasted := history.unused(process.process)):
        name, lost = None, None  # as a notebook is between two commands
    limit = limit_words(name, verdict.causes) if verdict and name else None
    named = (largest(name, verdict.causes) or [name]) if verdict and name else []
    measured = replace(process, step_shares=parts, rest_shares=rest, data_wait_ratio=parts.get("data"))
    own = level(state, name, process.role, wasted=wasted)
    shown = replace(
        measured,
        state=state,
        state_words=state_words(state, process.role, process.hook, starting=process.starting, silent=process.silent),
        limited_by=name,
        limited_by_words=limit,
        limited_by_ratio=verdict.causes.get(name) if verdict and name else None,
        lost_ratio=lost,
        causes=verdict.causes if verdict else None,
        evidence=found_by(named, judged.known if judged else {}),
        slowness=own_rank.times if (own_rank := subject.ranks.get(process.process)) else None,
        level=own,
        trouble_since=history.troubled_since(process.process) if own in _ILL or state == "held_idle" else None,
        undecidable=tuple(sorted(verdict.undecidable)) if verdict else (),
    )
    subject = subject._replace(process=shown)
    found = advice_of(subject)
    # Where there is no GPU, training on the CPU is no trouble, but what it waits for may be.
    waits = "cpu_limited" if found and found[0].topic == CROWDED else found[0].cause if found else None
    trouble = (None, waits) if state == "training_on_cpu" and not name else (state, name)
    runbook = section_of_training(*trouble) if state else None
    gain_words, steps = words_of_gain(found[0]) if found else None, tuple(steps_of(found, subject.mains))
    if gain_words and 0 < (count := len(found[0].steps)) < len(steps):
        gain_words += f", with step{'s 1 to ' if count > 1 else ' '}{count} alone"
    shown = replace(shown, advice=words(found, subject.mains), advice_steps=steps, gain_words=gain_words)
    return replace(shown, changes=tuple(found), runbook=runbook)


def _advised(process: ProcessStatus, history: History) -> ProcessStatus:
    """Return a process that has ended with the owner and the advice that it had at last."""
    subject = history.last_trained(process.process)
    if subject is None or subject.session is None:
        return process
    owner = workload(subject.host.workload) if subject.host else {}
    process = replace(process, workload=owner | dict(process.workload))
    was = _judged(replace(process, loader=training.loader_options(subject.session)), history, subject)
    process = replace(process, advice=was.advice, advice_steps=was.advice_steps, gain_words=was.gain_words)
    return replace(process, changes=was.changes, runbook=was.runbook)


def level(state: str | None, cause: str | None, role: str | None, *, wasted: bool) -> str:
    """Return how well a process uses what it holds. Training on the CPU is bad only with a cause: on a machine without
    a GPU there is none.
    """
    if role == "display" or state is None:
        return "none"
    if state == "training_on_cpu" and not cause:
        return "poor" if wasted else "good"
    if state in _FAILING or (wasted and (cause or state == "held_idle")):
        return "bad"
    return "poor" if cause else "good" if state in _WORKING else "none"


def _role(known: ProcessStatus, *, hooked: bool) -> str | None:
    """Return what a process is: a server or a notebook by its command, a training (torch is loaded), a display server
    or desktop program. None if that is not known: not every process can be read.
    """
    served = None if hooked else serving.role(known.command)
    if served or hooked or known.torch_build:
        return served or "training"
    return "display" if known.kind == "graphics" else None
