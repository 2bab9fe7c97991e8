"""Model FLOPs utilization: the model FLOPs of the steps in their time, over the peak of the process's GPUs."""

from __future__ import annotations

from functools import partial

from gpugauge.driver.vendors import peak
from gpugauge.node import training
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session


def model_flops_utilization(window: Window, process: str) -> float | None:
    """Return the ratio over the steps that ended in the window; None if the FLOPs, the dtype or a peak is not known. A
    ratio above 1 shows that one of them is wrong: it is None, too.
    """
    session = window.node.sessions.get(process)
    if session is None:
        return None
    track = window.session(process)
    rises = [rise for source in training.flops(session) if (rise := track.rise(partial(_flops, source)))]
    seconds, most = track.rise(training.step_seconds), _peak(session)
    # With two sources the program changed from one to the other in the window: the steps of each are not known. Both
    # sums are of the same steps, so that a step that lasts for a large part of the window counts right.
    ratio = rises[0] / seconds / most if len(rises) == 1 and seconds and most else None
    return None if ratio is None or ratio > 1 else ratio


def _flops(source: str, session: Session) -> float | None:
    return training.flops(session).get(source)


def _peak(session: Session) -> float | None:
    """Return the sum of the peaks of the GPUs on which the process has memory, None if one is not known."""
    dtype = session.facts.get("matmul_dtype", "")
    names = {d.uuid: d.name or "" for d in session.snap.devices} if session.snap else {}
    peaks = [peak(names[uuid], dtype) for uuid in training.by_uuid(session, lambda d: d.allocated)]
    return sum(filter(None, peaks)) if peaks and None not in peaks else None
