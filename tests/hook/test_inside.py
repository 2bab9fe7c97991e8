"""What is known from inside a real training: phases, facts, steps that no optimizer reports, waits for peers."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session

from .conftest import Run, finished, until
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
    return session.page.seconds[phase] if session.page else 0.0


def test_phases_are_known_by_themselves_and_by_the_programs_word(listener: Sessions, run: Run) -> None:
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
    finished(run(program))
    session = ended(listener)
    assert seconds(session, "training") >= 0.2
    assert seconds(session, "checkpointing") >= 0.2
    assert seconds(session, "evaluating") >= 0.8
    assert seconds(session, "generating") >= 0.2
    assert session.page is not None
    assert (session.page.steps, session.page.batches, session.page.phase) == (24, 40, "training")


def test_a_blocked_training_still_tells_where(listener: Sessions, run: Run) -> None:
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
    process = run(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "blocked\n"
    until(lambda: [s.page.phase for s in listener.view() if s.page] == ["loading"])
    (before,) = listener.view()
    until(lambda: seconds(listener.view()[0], "loading") > seconds(before, "loading") + 1)
    (after,) = listener.view()
    assert before.page is not None
    assert after.page is not None
    assert after.page.since == pytest.approx(before.page.since, abs=0.05)
    process.send_signal(signal.SIGKILL)
    assert ended(listener).page is not None


def test_facts_of_a_training_without_a_device(listener: Sessions, run: Run) -> None:
    # A CUDA build is one also where there is no driver.
    tell = "    train(loader)\n    print('cuda' if torch.version.cuda else 'cpu')\n"
    build = finished(run(LOOP + tell, CUDA_VISIBLE_DEVICES="", WANDB_RUN_ID="abc")).strip()
    session = ended(listener)
    assert session.snap is not None
    told = {"build": build, "cuda_visible_devices": "(empty)", "wandb_run": "abc", "loader_workers": "0"}
    told |= {"loader_batch_size": "4", "loader_pin_memory": "no", "tf32_matmul": "no"}
    assert told == {name: session.facts.get(name) for name in told}
    assert [(p.device, p.dtype, p.bytes) for p in session.snap.optimizer_state] == [("cpu", "float32", 2 * 144 + 8)]
    assert session.snap.step_source == "optimizer"
    assert "architectures" not in session.facts


def test_steps_of_a_compiled_optimizer_are_counted_by_batches(listener: Sessions, run: Run) -> None:
    program = (
        LOOP
        + """
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    from gpugauge.hook import install
    for batch in loader:
        model(batch).sum().backward()
        step()
        install.observer.hurry()
    import sys
    print("torch._dynamo.callback" in sys.modules)
    """
    )
    process = run(program)
    tells, _ = process.communicate(timeout=110)  # dynamo has something to say on stderr, with and without the hook
    assert process.returncode == 0
    session = ended(listener)
    assert session.snap is not None
    assert (session.snap.step_source, steps_of(session)) == ("batches", 8)
    if tells == "False\n":  # torch 2.1
        assert session.snap.compilations is None
        return
    assert session.snap.compilations
    assert session.facts["compiled"] == "yes"
    assert seconds(session, "compiling") > 0


PEERS = """
    import os, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    from gpugauge.hook import install
    for number in range(30):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        install.observer.hurry()
    dist.destroy_process_group()
"""


def test_a_rank_that_waits_for_a_slow_peer_works_less(listener: Sessions, run: Run) -> None:
    run(PEERS, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone").communicate(timeout=110)
    until(lambda: [s.connected for s in listener.view()] == [False, False])
    local = {}
    for session in listener.view():
        assert session.snap is not None
        assert session.snap.steps is not None
        assert session.snap.local_work_seconds is not None
        told = {"backend": "gloo", "parallel": "ddp", "world_size": "2"}
        assert told == {name: session.facts.get(name) for name in told}
        local[session.facts["rank"]] = session.snap.local_work_seconds / session.snap.steps.seconds
    assert local["0"] < 0.5 < local["1"]


def test_what_is_exported_works_without_anything_installed(tmp_path: Path, fake_torch: Path) -> None:
    folder = launch.export(tmp_path / "mounted")
    assert launch.export(tmp_path / "mounted") == folder
    program = "import torch, gpugauge, sys; print(gpugauge.__file__, 'gpugauge.hook.observer' in sys.modules)"
    environ = {"PYTHONPATH": f"{folder}:{fake_torch}"}
    command = [sys.executable, "-S", "-c", "import sitecustomize\n" + program]  # -S: no packages of this environment
    output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output == f"{tmp_path}/mounted/gpugauge/__init__.py True\n"


def test_a_loader_that_loads_from_another_is_loading_all_the_time(listener: Sessions, run: Run) -> None:
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
    """
    )
    finished(run(program))
    session = ended(listener)
    assert seconds(session, "loading") >= 0.6
    assert 0.2 <= seconds(session, "training") < 0.5
    assert session.page is not None
    assert session.page.phase == "training"


def test_a_hook_that_is_switched_off_keeps_nothing(run: Run, fake_torch: Path) -> None:
    program = """
        import os, torch
        from gpugauge.hook import install, observer
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        optimizer.step(), next(batches)
        ours = install.observer
        for _ in range(observer.MAX_ERRORS):
            ours.failed()
        before = len(ours.recorder.steps), len(ours.recorder.batches)
        child = os.fork()
        if not child:
            before = (0, 0)  # a child begins anew, and stays switched off
        for _ in range(9):
            optimizer.step(), next(batches)
        assert before == (len(ours.recorder.steps), len(ours.recorder.batches))
        if child:
            assert os.wait() == (child, 0)
            print("kept nothing")
    """
    assert finished(run(program, PYTHONPATH=str(fake_torch))) == "kept nothing\n"
