"""Idioms of training programs in which statements were wrong once. `make strangers` draws and compares others."""

from pathlib import Path

import pytest

from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session

from .conftest import Run, RunFork, finished, until

REAL = """
import logging, time, torch
logging.disable()  # a compiled step without a C++ compiler warns
from torch.utils.data import DataLoader
torch.set_num_threads(1)
def made():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
class Items(list):
    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)
loader = DataLoader(Items([torch.ones(4)] * 8), batch_size=2)
"""


def session(listener: Sessions) -> Session:
    until(lambda: [s.connected for s in listener.view()] == [False])
    (found,) = listener.view()
    assert found.snap is not None
    assert found.snap.errors == 0
    return found


def counts(found: Session) -> tuple[int | None, int | None]:
    assert found.snap is not None
    steps, batches = found.snap.steps, found.snap.batches
    return steps.count if steps else None, batches.count if batches else None


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "steps"),
    [
        # A subclass that calls the step of its base class, while another instance of the base class exists.
        (
            """
            class Scaled(torch.optim.SGD):
                def step(self, closure=None):
                    return super().step(closure)
            model, other = made()
            optimizer = Scaled(model.parameters(), lr=0.1)
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
            """,
            4,
        ),
        # A wrapper that is an optimizer, around another one.
        (
            """
            class Lookahead(torch.optim.Optimizer):
                def __init__(self, inner):
                    super().__init__([p for g in inner.param_groups for p in g["params"]], {})
                    self.inner = inner
                def step(self, closure=None):
                    self.inner.step()
            model, inner = made()
            optimizer = Lookahead(inner)
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
            """,
            4,
        ),
        # Twenty optimizers that live to the end.
        (
            """
            kept = []
            for fold in range(20):
                model, optimizer = made()
                kept.append((model, optimizer))
                for batch in loader:
                    model(batch).sum().backward()
                    optimizer.step()
            """,
            80,
        ),
        # A compiled step, with gradient accumulation.
        (
            """
            model, optimizer = made()
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(4):
                for number, batch in enumerate(loader):
                    model(batch).sum().backward()
                    if number % 2:
                        step()
                        optimizer.zero_grad()
            """,
            8,
        ),
        # A compiled step, with batches that are fetched four at a time.
        (
            """
            model, optimizer = made()
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(4):
                batches = iter(loader)
                for batch in list(zip(*[batches] * 4))[0]:
                    model(batch).sum().backward()
                    step()
                    optimizer.zero_grad()
            """,
            16,
        ),
        # The same on another thread.
        (
            """
            import threading
            model, optimizer = made()
            def work():
                step = torch.compile(optimizer.step, backend="eager")
                for _ in range(2):
                    batches = iter(loader)
                    for batch in list(zip(*[batches] * 4))[0]:
                        model(batch).sum().backward()
                        step()
                        optimizer.zero_grad()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            """,
            8,
        ),
        # On another thread, which leaves its loop after a step that nothing reports.
        (
            """
            import threading
            model, optimizer = made()
            def work():
                step = torch.compile(optimizer.step, backend="eager")
                for number, batch in enumerate(DataLoader([torch.ones(4)] * 16, batch_size=2)):
                    model(batch).sum().backward()
                    step()
                    optimizer.zero_grad()
                    if number == 5:
                        break
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            """,
            6,
        ),
        # Updates by hand, without a loader: the backward passes show a training.
        (
            """
            weight = torch.ones(4, requires_grad=True)
            for _ in range(4):
                (weight.sum() ** 2).backward()
                weight = (weight - 0.1 * weight.grad).detach().requires_grad_()
            """,
            None,
        ),
        # Updates by hand.
        (
            """
            model, _ = made()
            del _
            for batch in loader:
                model(batch).sum().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
            """,
            None,
        ),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_loop(program: str, steps: int | None, listener: Sessions, fork: RunFork) -> None:
    finished(fork(REAL + "\n".join(line[12:] for line in program.splitlines())))
    found = session(listener)
    assert counts(found)[0] == steps
    assert found.snap is not None
    if steps is not None:
        assert [entry.elements for entry in found.snap.parameters] == [25]


@pytest.mark.torch
def test_an_iterator_of_the_loader_keeps_its_type(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
import gpugauge.hook
class Logged(DataLoader):
    def __iter__(self):
        return super().__iter__()
_, optimizer = made()
for batches in Logged([1] * 8), gpugauge.hook.batches(loader):
    iterator = iter(batches)
    print(len(iterator), type(iterator).__name__)
    for _ in iterator:
        optimizer.step()
"""
    assert finished(fork(program)) == "8 _SingleProcessDataLoaderIter\n4 _SingleProcessDataLoaderIter\n"
    assert counts(session(listener)) == (12, 12)


@pytest.mark.torch
def test_a_teacher_in_evaluation_mode_is_not_an_evaluation(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
import copy
model, optimizer = made()
teacher = copy.deepcopy(model).eval()
for _ in range(2):
    for batch in loader:
        teacher.eval()
        model[1].eval()
        time.sleep(0.05)
        model(batch).sum().backward()
        optimizer.step()
"""
    finished(fork(program, simulated=True))
    found = session(listener)
    assert found.record is not None
    assert found.record.seconds["evaluating"] == 0
    assert set(found.snap.waits or {} if found.snap else {}) == {"training"}


# Two loaders, both read while the model is in evaluation mode.
ZIPPED = """
model, optimizer = made()
for batch, other in zip(loader, DataLoader(Items([torch.ones(4)] * 8), batch_size=2)):
    model.train()
    time.sleep(0.05)
    model(batch + other).sum().backward()
    optimizer.step()
    model.eval()
    model(batch)
"""
# A loop of two batches, left early, in which the model is evaluated after each.
LEFT = """
model, optimizer = made()
loss = 0
for turn in range(3):
    for number, batch in enumerate(loader):
        model.train()
        time.sleep(0.02)
        loss = loss + model(batch).sum()
        if (2 * turn + number) % 3 == 2:
            loss.backward()
            optimizer.step()
            loss = 0
        model.eval()
        model(batch)
        if number:
            break
"""
# A thread that fetches without gradients.
THREAD = """
import threading
def work():
    model, optimizer = made()
    batches = iter(loader)
    for _ in range(4):
        with torch.no_grad():
            batch = next(batches)
        time.sleep(0.2)
        model(batch).sum().backward()
        optimizer.step()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
# A thread that sums up the losses of two batches.
SUMMED = """
import threading
def work():
    model, optimizer = made()
    loss = 0
    for number, batch in enumerate(loader):
        time.sleep(0.05)
        loss = loss + model(batch).sum()
        if number % 2:
            loss.backward()
            optimizer.step()
            loss = 0
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "samples", "most"),
    # Without gradients, a first batch looks like one of an evaluation, until the step.
    [(ZIPPED, 16, 0.5), (THREAD, 8, 0.3), (SUMMED, 8, 0.0), (LEFT, 12, 0.5)],
    ids=["zipped", "thread", "summed", "left"],
)
def test_batches_of_a_training_are_no_evaluation(
    program: str, samples: int, most: float, listener: Sessions, fork: RunFork
) -> None:
    finished(fork(REAL + program, simulated=True))
    found = session(listener)
    assert found.snap is not None
    assert found.record is not None
    assert (found.snap.samples, set(found.snap.waits or {})) == (samples, {"training"})
    assert found.record.seconds["evaluating"] <= most


@pytest.mark.torch
def test_an_evaluation_between_updates_by_hand_is_one(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
model, _ = made()
del _
for turn in range(3):
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
    for batch in loader:
        time.sleep(0.02)
        model(batch)
"""
    finished(fork(program, simulated=True))
    found = session(listener)
    assert found.snap is not None
    assert set(found.snap.waits or {}) == {"evaluating"}


@pytest.mark.torch
@pytest.mark.parametrize("fetched", ["iter", "without_gradients"])
def test_batches_that_are_summed_up_later_in_the_run_are_no_evaluation(
    fetched: str, listener: Sessions, fork: RunFork
) -> None:
    program = f"""{REAL}
import gpugauge.hook
def without_gradients(batches):
    iterator = iter(batches)
    while True:
        with torch.no_grad():
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch
model, optimizer = made()
done = loss = 0
for epoch in range(3):
    for batch in {fetched}(gpugauge.hook.batches(torch.ones(2, 4) for _ in range(6))):
        time.sleep(0.05)
        loss = loss + model(batch).sum()
        done += 1
        if done <= 3 or done % 4 == 0:
            loss.backward()
            optimizer.step()
            loss = 0
"""
    finished(fork(program, simulated=True))
    found = session(listener)
    assert found.record is not None
    assert counts(found) == (7, 18)
    assert found.record.seconds["evaluating"] < 0.2  # a first batch without gradients is taken for one, until the step


@pytest.mark.torch
def test_declared_batches_of_a_thread_that_does_not_train_are_no_errors(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
import gpugauge.hook, threading
def work():
    for _ in gpugauge.hook.batches(torch.ones(2, 4) for _ in range(20)):
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
model, optimizer = made()
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
"""
    finished(fork(program))
    assert counts(session(listener))[0] == 4


@pytest.mark.torch
def test_a_loader_that_ended_before_another_thread_trains_hides_no_samples(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
import gpugauge.hook, threading
for _ in gpugauge.hook.batches([1]):
    pass
def work():
    model, optimizer = made()
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    finished(fork(program))
    found = session(listener)
    assert found.snap is not None
    assert (counts(found)[0], found.snap.samples) == (4, 8)


@pytest.mark.torch
def test_a_loader_that_fails_and_is_begun_again_trains(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
class Flaky(Items):
    fails = [3]
    def __getitem__(self, index):
        if index in self.fails:
            self.fails.clear()
            raise OSError
        return super().__getitem__(index)
model, optimizer = made()
loader, total = DataLoader(Flaky([torch.ones(4)] * 16), batch_size=2), 0
for attempt in range(2):
    try:
        for batch in loader:
            time.sleep(0.01)
            total = total + model(batch).sum()
        total.backward()
        optimizer.step()
    except OSError:
        pass
"""
    finished(fork(program, simulated=True))
    found = session(listener)
    assert found.snap is not None
    assert (counts(found), found.snap.samples) == ((1, 9), 18)
    assert set(found.snap.waits or {}) == {"training"}


@pytest.mark.torch
def test_waits_that_nothing_has_decided_are_not_those_of_the_training(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
import os, signal
model, optimizer = made()
for batch in loader:
    time.sleep(1.2)
    os.kill(os.getpid(), signal.SIGKILL) if batch is not None and len(done) else done.append(1)
""".replace("model, optimizer", "done = []\nmodel, optimizer")
    fork(program).wait()
    found = session(listener)
    assert found.snap is not None
    assert (counts(found)[1], found.snap.waits) == (2, {})


@pytest.mark.torch
def test_gradients_of_parameters_are_of_a_training_and_those_of_data_are_not(listener: Sessions, fork: RunFork) -> None:
    program = f"""{REAL}
model, _ = made()
del _
for batch in loader:  # forces of a model that is used
    with torch.no_grad():
        x = batch.clone().requires_grad_()
    time.sleep(0.01)
    torch.autograd.grad(model(x).sum(), x)
for epoch in range(2):
    iterator = iter(loader)
    while True:
        with torch.no_grad():
            batch = next(iterator, None)
        if batch is None:
            break
        time.sleep(0.05)
        for p, g in zip(model.parameters(), torch.autograd.grad(model(batch).sum(), model.parameters())):
            p.data -= 0.1 * g
"""
    finished(fork(program, simulated=True))
    found = session(listener)
    assert found.record is not None
    assert found.record.seconds["training"] > 0.3
    assert found.record.seconds["evaluating"] < 0.1


def test_a_subclass_of_the_loader_in_a_named_phase_counts_its_batches_once(
    listener: Sessions, run: Run, fake_torch: Path
) -> None:
    program = """
        import torch, gpugauge.hook as hook
        class Shifted(torch.DataLoader):
            def __iter__(self):
                for _, batch in zip(range(10), super().__iter__()):
                    yield batch
        optimizer = torch.Optimizer()
        @hook.phase("train")
        def train():
            for _ in Shifted():
                optimizer.step()
        train()
    """
    finished(run(program, PYTHONPATH=str(fake_torch)))
    assert counts(session(listener)) == (10, 10)


def test_the_thread_that_reports_steps_is_the_training_thread(listener: Sessions, run: Run, fake_torch: Path) -> None:
    program = """
        import threading, time, torch, gpugauge.hook as hook
        torch.Iterator.takes = 0.05
        def work():
            batches = torch.Iterator()
            for _ in range(4):
                next(batches)
                hook.step()
            with hook.phase("eval"):
                time.sleep(0.2)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    finished(run(program, simulated=True, PYTHONPATH=str(fake_torch)))
    found = session(listener)
    assert counts(found) == (4, 4)
    assert found.record is not None
    assert found.record.seconds["evaluating"] == pytest.approx(0.2)
    assert found.record.waits["training"] == pytest.approx(0.2)


def test_children_that_do_not_train_have_no_steps(listener: Sessions, run: Run, fake_torch: Path) -> None:
    program = """
        import os, torch
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        next(batches), optimizer.step()
        if not os.fork():
            next(batches)
            os._exit(0)
        os.wait()
    """
    finished(run(program, PYTHONPATH=str(fake_torch)))
    until(lambda: [s.connected for s in listener.view()] == [False, False])
    assert {counts(found) for found in listener.view()} == {(1, 1), (None, 1)}
