"""Real trainings: phases, facts, steps that no optimizer reports, waits for other ranks."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session

from .conftest import Run, RunFork, finished, until
from .test_training import ended, steps_of

LOOP = """
    import time, torch, gpugauge.hook
    from torch.utils.data import DataLoader
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    def train(loader):
        model.train()
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
    loader = DataLoader([torch.ones(8)] * 32, batch_size=4)
"""


def seconds(session: Session, phase: str) -> float:
    return session.record.seconds[phase] if session.record else 0.0


@pytest.mark.torch
def test_phases_from_calls_of_torch_and_from_the_program(listener: Sessions, fork: RunFork) -> None:
    program = (
        LOOP
        + """
    class Slow:
        def __reduce__(self):
            time.sleep(0.2)
            return (str, ())

    train(loader)
    time.sleep(0.2)
    torch.save(Slow(), "/dev/null")
    with torch.no_grad():
        for batch in loader:
            time.sleep(0.05)
    train(loader)
    model.eval()
    for batch in loader:
        time.sleep(0.05)
    train(loader)
    with gpugauge.hook.phase("generation"):
        time.sleep(0.2)
    """
    )
    finished(fork(program, simulated=True))
    session = ended(listener)
    assert seconds(session, "training") >= 0.2
    assert seconds(session, "checkpointing") == pytest.approx(0.2)
    assert seconds(session, "evaluating") == pytest.approx(0.8)
    assert seconds(session, "generating") == pytest.approx(0.2)
    assert session.record is not None
    assert (session.record.steps, session.record.batches, session.record.phase) == (24, 40, "training")


@pytest.mark.torch
def test_a_blocked_training_reports_its_phase(listener: Sessions, fork: RunFork) -> None:
    program = (
        LOOP
        + """
    def blocked():
        for number in range(100):
            if number == 20:
                print("blocked", flush=True)
                time.sleep(600)
            yield torch.ones(8)
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return blocked()
    train(DataLoader(Endless(), batch_size=1))
    """
    )
    process = fork(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "blocked\n"
    until(lambda: [s.record.phase for s in listener.view() if s.record] == ["loading"])
    (before,) = listener.view()
    until(lambda: seconds(listener.view()[0], "loading") > seconds(before, "loading") + 1)
    assert before.record is not None
    since = pytest.approx(before.record.since, abs=0.05)
    # Each reading compares two clocks, and may be interrupted between them.
    until(lambda: [s.record.since for s in listener.view() if s.record] == [since])
    process.send_signal(signal.SIGKILL)
    assert ended(listener).record is not None


@pytest.mark.torch
def test_facts_of_a_training_without_a_device(listener: Sessions, fork: RunFork) -> None:
    # A CUDA build is one also where there is no driver.
    printing = "    train(loader)\n    print('cuda' if torch.version.cuda else 'cpu')\n"
    build = finished(fork(LOOP + printing, CUDA_VISIBLE_DEVICES="", WANDB_RUN_ID="abc")).strip()
    session = ended(listener)
    assert session.snap is not None
    expected = {"build": build, "cuda_visible_devices": "(empty)", "wandb_run": "abc", "loader_workers": "0"}
    expected |= {"loader_batch_size": "4", "loader_pin_memory": "no", "tf32_matmul": "no"}
    assert expected == {name: session.facts.get(name) for name in expected}
    assert [(p.device, p.dtype, p.bytes) for p in session.snap.optimizer_state] == [("cpu", "float32", 2 * 144 + 8)]
    assert session.snap.step_source == "optimizer"
    assert "architectures" not in session.facts


@pytest.mark.torch
def test_steps_of_a_compiled_optimizer_are_counted_by_batches(listener: Sessions, fork: RunFork) -> None:
    program = (
        LOOP
        + """
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    from gpugauge.hook import install
    for batch in loader:
        model(batch).sum().backward()
        step()
        install.observer.publish_soon()
    import sys
    print("torch._dynamo.callback" in sys.modules)
    """
    )
    process = fork(program)
    output, _ = process.communicate()  # dynamo writes to stderr, with and without the hook
    assert process.returncode == 0
    session = ended(listener)
    assert session.snap is not None
    assert (session.snap.step_source, steps_of(session)) == ("batches", 8)
    if output == "False\n":  # torch 2.1
        assert session.snap.compilations is None
        return
    assert session.snap.compilations
    assert session.facts["compiled"] == "yes"
    assert seconds(session, "compiling") > 0


PEERS = """
    import os, sys, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    from gpugauge.hook import install
    for number in range(30):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        install.observer.publish_soon()
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_local_work_excludes_waits_for_a_slow_rank(listener: Sessions, fork: RunFork, tmp_path: Path) -> None:
    # The store of torchrun is another one; its start is that of test_the_ends_under_the_elastic_agent.
    store = f"file://{tmp_path}/rendezvous"
    ranks = [fork(PEERS, arguments=(store,), RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    for rank in ranks:
        rank.communicate()
    until(lambda: [s.connected for s in listener.view()] == [False, False])
    local = {}
    for session in listener.view():
        assert session.snap is not None
        assert session.snap.steps is not None
        assert session.snap.local_work_seconds is not None
        expected = {"backend": "gloo", "parallel": "ddp", "world_size": "2"}
        assert expected == {name: session.facts.get(name) for name in expected}
        local[session.facts["rank"]] = session.snap.local_work_seconds / session.snap.steps.seconds
    assert local["0"] < 0.5 < local["1"]


def test_the_exported_hook_works_without_installed_packages(tmp_path: Path, fake_torch: Path) -> None:
    folder = launch.export(tmp_path / "mounted")
    assert launch.export(tmp_path / "mounted") == folder
    program = "import torch, gpugauge, sys; print(gpugauge.__file__, 'gpugauge.hook.observer' in sys.modules)"
    environ = {"PYTHONPATH": f"{folder}:{fake_torch}"}
    command = [sys.executable, "-S", "-c", "import sitecustomize\n" + program]  # -S: no packages of this environment
    output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output == f"{tmp_path}/mounted/gpugauge/__init__.py True\n"


@pytest.mark.torch
def test_a_nested_loader_counts_as_loading(listener: Sessions, fork: RunFork) -> None:
    program = (
        LOOP
        + """
    class Chained(torch.utils.data.IterableDataset):
        def __iter__(self):
            for batch in DataLoader([torch.ones(8)] * 8, batch_size=None):
                time.sleep(0.05)
                yield batch
    train(DataLoader(Chained(), batch_size=2))
    with gpugauge.hook.phase("load"):
        batch = next(iter(loader))
        time.sleep(0.2)
    time.sleep(0.2)
    with gpugauge.hook.phase("other"):
        pass
    """
    )
    finished(fork(program, simulated=True))
    session = ended(listener)
    assert seconds(session, "loading") == pytest.approx(0.6)
    assert seconds(session, "training") >= 0.2
    assert session.record is not None
    assert session.record.phase == "training"


def test_a_hook_that_is_switched_off_records_nothing(run: Run, fake_torch: Path) -> None:
    program = """
        import os, torch
        from gpugauge.hook import install, observer
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        optimizer.step(), next(batches)
        ours = install.observer
        for _ in range(observer.MAX_ERRORS):
            ours.count_error()
        before = len(ours.recorder.ends), len(ours.recorder.waits)
        child = os.fork()
        if not child:
            before = (0, 0)  # a child starts from zero and stays switched off
        for _ in range(9):
            optimizer.step(), next(batches)
        assert before == (len(ours.recorder.ends), len(ours.recorder.waits))
        if child:
            assert os.wait() == (child, 0)
            print("recorded nothing")
    """
    assert finished(run(program, PYTHONPATH=str(fake_torch))) == "recorded nothing\n"


@pytest.mark.torch
def test_an_evaluation_ends_with_the_method_train(listener: Sessions, fork: RunFork) -> None:
    # Without a loader: of graphs, agents and diffusion models. A part of the model does not count.
    program = """
        import time, torch, torch._dynamo
        part = torch.nn.Linear(2, 2)
        model = torch.nn.Sequential(part, torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        step()
        for _ in range(3):
            model.eval()
            time.sleep(0.2)
            model.train()
            time.sleep(0.1)
            model[1].eval()
            step()
    """
    finished(fork(program, simulated=True))
    session = ended(listener)
    assert seconds(session, "evaluating") == pytest.approx(0.6)
    assert seconds(session, "training") >= 0.3


@pytest.mark.torch
def test_a_wait_serves_the_phase_that_the_program_names(listener: Sessions, fork: RunFork) -> None:
    program = (
        LOOP
        + """
    with gpugauge.hook.phase("eval"):
        for _ in loader:
            time.sleep(0.05)
    """
    )
    finished(fork(program))
    session = ended(listener)
    assert session.snap is not None
    assert set(session.snap.waits or {}) == {"evaluating"}


def test_functions_of_time_may_be_replaced_in_all_modules(listener: Sessions, run: Run, fake_torch: Path) -> None:
    # As freezegun does.
    program = """
        import sys, time, torch
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        torch.Iterator.takes = 0.1
        def train():
            for _ in range(2):
                next(batches), optimizer.step()
        started = time.monotonic()
        train()
        real = {id(getattr(time, name)) for name in ("time", "monotonic", "perf_counter", "perf_counter_ns")}
        replaced = [
            (module, name, value)
            for module in list(sys.modules.values()) if module.__name__.startswith("gpugauge")
            for name, value in list(vars(module).items()) if id(value) in real
        ]
        for module, name, _ in replaced:
            setattr(module, name, lambda: 0)
        train()
        for module, name, value in replaced:
            setattr(module, name, value)
        train()
        from gpugauge.hook import install
        print(install.observer.errors, time.monotonic() - started)
    """
    errors, took = finished(run(program, PYTHONPATH=str(fake_torch))).split()
    session = ended(listener)
    assert session.snap is not None
    assert session.snap.steps is not None
    assert (errors, session.snap.steps.count) == ("0", 6)
    assert session.snap.waits is not None
    assert 0.6 <= session.snap.waits["training"] <= float(took)
    assert session.record is not None
    assert 0.6 <= session.record.seconds["loading"] <= float(took)


@pytest.mark.torch
def test_evaluations_beside_a_part_that_stays_in_eval_mode(listener: Sessions, fork: RunFork) -> None:
    """Its statistics are frozen: train() of the model calls eval() of that part."""
    program = """
    import time, torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        def train(self, mode=True):
            super().train(mode)
            if mode:
                self.backbone.eval()
            return self
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(3):
        model.train()
        for _ in range(5):
            model.head(model.backbone(torch.ones(2, 8))).sum().backward()
            optimizer.step()
        model.eval()
        time.sleep(0.3)
    model.train()
    """
    finished(fork(program, simulated=True))
    session = ended(listener)

    assert steps_of(session) == 15
    assert seconds(session, "evaluating") == pytest.approx(0.9)


@pytest.mark.torch
def test_parameters_without_a_shape_yet(listener: Sessions, fork: RunFork) -> None:
    program = """
    import torch
    from torch.utils.data import DataLoader
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in DataLoader([torch.ones(8)] * 40, batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
    """
    finished(fork(program))
    session = ended(listener)

    assert steps_of(session) == 20
    assert session.snap is not None
    assert (session.snap.samples, session.snap.errors) == (40, 0)
