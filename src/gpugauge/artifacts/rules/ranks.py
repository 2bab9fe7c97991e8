"""The recording rules about ranks: what each computes itself, which are stalled, and which hold the others up."""

from __future__ import annotations

from gpugauge.artifacts.rules.promql import JOB_LABELS, PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.recording import ALIVE, ARMED, Recording, problem
from gpugauge.base.duration import format_duration
from gpugauge.verdict.ranks import FOR_ONE, LEAST_SHOWN, LEAST_WORK
from gpugauge.wire.shares import NAMED_PHASES

STALLED = "gpugauge:process_training_stalled:bool"
RANK_WORK = "gpugauge:rank_local_work:ratio"
RANK_SLOW = "gpugauge:rank_slow:ratio"
RANK = "gpugauge:rank:info"
RANK_EXCUSED = "gpugauge:rank_excused:bool"
RANK_POSITION = "gpugauge:rank_position:info"
RANK_BEHIND = "gpugauge:rank_behind:ratio"
SLOW = f'{RANK_BEHIND}{{position="slow"}}'
# The share of the evaluations in which a slow rank may be as fast as the others.
_FAST_SHARE = 0.1


def recordings(s: Selectors) -> list[Recording]:
    """Return the rules."""
    stalled = s.by_process(f"max_over_time({s('training_state', s.lookback, state='stalled')}) == 1")
    return [
        Recording(RANK, f"({_rank(s, 'world_size', 'run_id', world_size='!~|1')})\n{_of_job(s)}"),
        Recording(RANK_WORK, _rank_work(s)),
        Recording(RANK_SLOW, _rank_slow(s)),
        Recording(RANK_EXCUSED, _rank_excused(s)),
        Recording(STALLED, f"{stalled}\n{s.on_process('unless', RANK_EXCUSED)}"),
        Recording(RANK_POSITION, _rank_position(s)),
        Recording(RANK_BEHIND, _rank_behind(s)),
        problem("stalled", s.jobs_with(STALLED) + s.and_job(ALIVE)),
    ]


def _rank_work(s: Selectors) -> str:
    """Return the share of its time that each living rank older than the window works itself, with its labels."""
    process = s.keys("process")
    name = "torch_local_work_seconds_total"
    # Relative to the observed time, so that the restart of an exporter, or a second scrape, changes nothing.
    observed = f"sum by ({process}) ({s.rate('training_seconds_total', s.lookback)})"
    share = f"sum by ({s.keys('process', 'instance')}) ({s.rate(name, s.lookback)})"
    alive = s.on_process("and", s("training_state", state="training"))
    work = f"({share}\n/ on ({process}) group_left () ({observed} > 0)\n{alive}\n{s.before(name, s.lookback)})"
    return f"{work}\n* {_with(s, ', '.join(('rank', 'world_size', 'run_id', *JOB_LABELS)))} {RANK}"


def _rank_slow(s: Selectors) -> str:
    """Return the work of each rank by that of the median one, or of the other of two, of its run."""
    run = f"{s.job}, run_id, world_size"
    one = f"min by ({run}) ({RANK_WORK}) and count by ({run}) ({RANK_WORK}) == 2"
    median = f"clamp_min({one} or quantile by ({run}) (0.5, {RANK_WORK}), {LEAST_SHOWN:g})"
    return f"{RANK_WORK}\n/ on ({run}) group_left () {median}"


def _rank_position(s: Selectors) -> str:
    """Return 1 for each rank that is stalled, with its position, the function in which it waits, instance and rank; and
    for those of the same run that have ended, and were not started again.
    """
    position = s.keys("process", "instance", "position", "function")
    last = f"(max by ({position}) ({s.present('training_rank_position')}) {s.on_process('and', STALLED)})"

    stalled = f"{last}\n* {_with(s, ', '.join(('rank', 'world_size', *JOB_LABELS)))} {RANK}"
    # The others are stalled only after some minutes, when the series of an ended process may be gone.
    end = f"max by ({s.keys('process', 'instance')}) (last_over_time({s('training_end_timestamp_seconds', s.memory)}))"
    ranks = _rank(s, "world_size", window=s.memory, world_size="!~|1")
    ended = f'label_replace({end} > bool 0, "position", "ended", "", "")\n* {_with(s, "rank, world_size")} ({ranks})'
    alive = f"({RANK} {s.on_process('and', s.present('training_state', state='stalled'))})"
    run = f"{s.job}, world_size"
    return f"{stalled}\nor ({ended}\n{_of_job(s)}\nand on ({run}) ({stalled})\nunless on ({run}, rank) {alive})"


def _rank(s: Selectors, *more: str, window: int = 0, **labels: str) -> str:
    """Return 1 for each process, with its rank and further labels of its facts."""
    process, info = s.keys("process"), s("torch_process_info", window or s.patience, **labels)
    ranks = f"sum by ({', '.join((process, 'rank', *more))}) (count_over_time({info}))"
    return f"topk by ({process}) (1, {ranks}) > bool 0"


def _with(s: Selectors, labels: str) -> str:
    return f"on ({s.keys('process')}) group_left ({labels})"


def _of_job(s: Selectors) -> str:
    """Return the join that adds the labels of the job to those of a process."""
    return f"* {_with(s, ', '.join(JOB_LABELS))} {PROCESS_JOB}"


def _rank_excused(s: Selectors) -> str:
    """Return 1 for the ranks of a run of which one is in a phase without steps, for which the others may wait. The
    verdict decides how long: then the state of that rank is `stalled`.
    """
    phases, window = "~" + "|".join(sorted(NAMED_PHASES)), min(s.lookback, s.stall_patience)
    in_phase = f"({s.rate('training_seconds_total', window, state=phases)} > 0)"
    return f"{RANK}\nand on ({s.job}, world_size) ({RANK} {s.on_process('and', in_phase)})"


def _rank_behind(s: Selectors) -> str:
    """Return the ranks that hold the others up: 1 for those of a job that stalls, as verdict.ranks.behind() decides on
    one node, and for slow ones how many times as long as the median rank they work. One that pauses once is not slow.
    """
    others, waiting = (f'{RANK_POSITION}{{position{sign}"waiting"}}' for sign in ("!=", "="))
    count, by_function = f"count by ({s.job})", f"{s.job}, function"
    few = f"{others}{s.and_job(f'({count} ({others}) <= on ({s.job}) {count} ({waiting}))')}"
    collective = f'{RANK_POSITION}{{position="waiting",function!~"{"|".join(FOR_ONE)}"}}'
    most = f"2 * count by ({by_function}) ({collective}) > on ({s.job}) group_left () {count} ({collective})"
    other = f"{collective} unless on ({by_function}) ({most})"
    stuck = f"({few})\nor ({other}{s.and_job(f'({most})')}{s.unless_job(others)})"
    window, above = format_duration(s.patience + s.settle), f"> {s.straggler_above:g}"
    usual = f"quantile_over_time({_FAST_SHARE:g}, {{}}[{window}])"
    works = f"{usual.format(RANK_WORK)} > {s.straggler_above * LEAST_WORK:g}"
    lasting = f"({usual.format(RANK_SLOW)} {above}\nand {RANK_SLOW} {above}\nand {works})"
    slow = f'label_replace({lasting}, "position", "slow", "", ""){s.and_job(ARMED)}{s.unless_job(RANK_POSITION)}'
    return f"{stuck}\nor ({slow})"
