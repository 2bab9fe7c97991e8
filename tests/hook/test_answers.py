"""The answer about a thread that is blocked, with the real torch."""

import pytest

from .conftest import RunFork, finished

PROGRAM = """
    import threading
    from gpugauge.hook.answers import answer

    def next_batch():
        held.acquire()

    held = threading.Lock()
    held.acquire()
    thread = threading.Thread(target=next_batch, daemon=True)
    thread.start()
    while (found := answer("s", 1, thread.ident)).frames[-1].line != 6:
        pass
    frame, own = found.frames[-1], {frame.function: frame.own for frame in found.frames}
    print(frame.function, frame.file.rpartition("/")[2], own["next_batch"], own["run"], found.waits_in)
"""


@pytest.mark.torch
def test_the_answer_has_the_line_at_which_a_thread_is_blocked(fork: RunFork) -> None:
    assert finished(fork(PROGRAM)).split() == ["next_batch", "program.py", "1", "0", "None"]
