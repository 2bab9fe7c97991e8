"""Whole programs with one process: uses of optimizers that no common loop has."""

from __future__ import annotations

from dataclasses import dataclass

from qa.strangers.successions import COPIED, ENSEMBLE, FOLDS, META, TRIALS, TWO_STAGES


@dataclass(frozen=True)
class Whole:
    """A program of its own: `@ending@` is drawn, `@compute@` stands for the time of a step."""

    name: str
    text: str
    weight: float = 1.0
    arguments: tuple[str, ...] = ()  # of the interpreter, before the script
    endings: bool = True  # whether the end is drawn


SECOND_THREAD = """
box = queue.Queue(maxsize=1)
done = []
net = torch.nn.Linear(8, 2)
opt = torch.optim.@kind@(net.parameters())
truth.parameters(18)
def trainer():
    while True:
        truth.ask(known=False)
        x = box.get()
        truth.got()
        if x is None:
            break
        opt.zero_grad()
        net(x).mean().backward()
        time.sleep(@compute@)
        opt.step()
        truth.step()
        done.append(1)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return @steps@
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(2, 8)
t = threading.Thread(target=trainer)
t.start()
for x in torch.utils.data.DataLoader(Rows(), batch_size=None):
    box.put(x)
box.put(None)
t.join()
truth.unknown("batches", "waits")
n = len(done)
"""
TRAINING_THREADS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return @steps@
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(8)
done = []
def trainer(number):
    net = torch.nn.Linear(8, 2)  # its own: gradients that threads share are freed while others read them
    opt = torch.optim.@kind@(net.parameters())
    for x in truth.each(torch.utils.data.DataLoader(Rows(), batch_size=2)):
        opt.zero_grad()
        net(x).square().mean().backward()
        time.sleep(@compute@)
        opt.step()
        truth.step()
        done.append(number)
threads = [threading.Thread(target=trainer, args=(number,)) for number in range(@inner@)]
for t in threads:
    t.start()
for t in threads:
    t.join()
truth.unknown("threads", "parameters")
n = len(done)
"""
WHOLE_SET = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * (@few@ + 4)
    def __getitem__(self, i):
        time.sleep(@item@ / 2)
        return torch.randn(8)
loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.@kind@(net.parameters())
truth.parameters(18)
n = 0
while n < @steps@:
    for x in truth.each(loader):
        net(x).square().mean().backward()
        time.sleep(@compute@ / 2)
        optimizer.step()
        optimizer.zero_grad()
        truth.step()
        n += 1
for turn in range(4):
    total = 0.0
    for x in truth.each(loader):
        total = total + net(x).square().mean()
        time.sleep(@compute@ / 2)
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
    truth.step()
    n += 1
"""
ROLLOUTS = """
policy, value = torch.nn.Linear(8, 2), torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
n = 0
while n < @steps@:
    with torch.no_grad():
        states = []
        for _ in range(6):
            time.sleep(@item@)
            states.append(torch.randn(8))
            policy(states[-1])
    states = torch.stack(states)
    for epoch in range(4):
        for part in states.split(3):
            loss = policy(part).square().mean() + value(part).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            truth.step()
            n += 1
            time.sleep(@compute@)
truth.parameters(27)
"""
EVOLUTION = """
theta = torch.zeros(8)
n = 0
truth.unknown("steps", "parameters")
gpugauge.hook.watch()
truth.watched()
with torch.no_grad():
    for generation in range(@steps@):
        noise = torch.randn(10, 8)
        time.sleep(@compute@)
        theta += 0.1 * (noise * noise.sum(1, keepdim=True)).mean(0)
        truth.step()
        n += 1
"""
TEACHER = """
import copy
student = torch.nn.Linear(8, 4)
teacher = copy.deepcopy(student).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters())
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return @steps@ * 4
    def __getitem__(self, i):
        time.sleep(@item@ / 4)
        return torch.randn(8)
n = 0
for x in truth.each(torch.utils.data.DataLoader(Rows(), batch_size=4)):
    with torch.no_grad():
        teacher.eval()
        target = teacher(x)
    optimizer.zero_grad()
    (student(x) - target).square().mean().backward()
    time.sleep(@compute@)
    optimizer.step()
    truth.step()
    n += 1
    with torch.no_grad():
        for a, b in zip(teacher.parameters(), student.parameters()):
            a.lerp_(b, 0.01)
truth.parameters(36)
"""
STALLED = """
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
for part in range(2):
    for _ in range(@few@ + 20):
        net(torch.randn(2, 8)).mean().backward()
        optimizer.step()
        truth.step()
        n += 1
        time.sleep(0.05)
    if part == 0:
        time.sleep(@stall@)
truth.parameters(18)
"""
ALTERNATING = """
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
for turn in range(4):
    for _ in range(@few@ * 5):
        net(torch.randn(2, 8)).mean().backward()
        optimizer.step()
        truth.step()
        n += 1
        time.sleep(@turn@ / @few@ / 5)
    with gpugauge.hook.phase("eval"), truth.within("evaluating"):
        time.sleep(@turn@)
truth.parameters(18)
"""
BEFORE_FORK = """
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
child = os.fork()
mine = @few@ + (30 if child else 10)
for _ in range(mine):
    net(torch.randn(2, 8)).mean().backward()
    optimizer.step()
    truth.step()
    n += 1
    time.sleep(@compute@)
truth.parameters(18)
if not child:
    time.sleep(1.5)
    truth.end("finished")
    os._exit(0)
os.waitpid(child, 0)
"""
DAEMONISED = """
if os.fork():
    os._exit(0)
os.setsid()
net = torch.nn.Linear(8, 2)
truth.parameters(18)
optimizer = torch.optim.@kind@(net.parameters())
n = 0
for _ in range(@steps@):
    net(torch.randn(2, 8)).mean().backward()
    optimizer.step()
    truth.step()
    n += 1
    time.sleep(@compute@)
truth.end("finished")
os._exit(0)
"""
ASYNCHRONOUS = """
import asyncio
async def batches():
    for _ in range(@steps@):
        await asyncio.sleep(@item@)
        yield torch.randn(2, 8)
async def main():
    net = torch.nn.Linear(8, 2)
    optimizer = torch.optim.@kind@(net.parameters())
    n = 0
    source = batches()
    while True:
        truth.ask(known=False)
        x = await anext(source, None)
        truth.got()
        if x is None:
            return n
        optimizer.zero_grad()
        net(x).mean().backward()
        await asyncio.sleep(@compute@)
        optimizer.step()
        truth.step()
        n += 1
n = asyncio.run(main())
truth.parameters(18)
"""

TEACHERS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return @steps@ * 2
    def __getitem__(self, i):
        time.sleep(@item@ / 4)
        return torch.randn(8)
labelled = torch.utils.data.DataLoader(Rows(), batch_size=2)
unlabelled = iter(torch.utils.data.DataLoader(Rows(), batch_size=2))
student, teacher = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4).eval()
optimizer = torch.optim.AdamW(student.parameters())
n = 0
for x in truth.each(labelled):
    with torch.no_grad():
        truth.ask()
        y = next(unlabelled)
        truth.got(samples=len(y))
        target = teacher(y)
    optimizer.zero_grad()
    (student(x).square().mean() + (student(y) - target).square().mean()).backward()
    time.sleep(@compute@)
    optimizer.step()
    truth.step()
    n += 1
truth.unknown("batches")
truth.parameters(36)
"""
PROMPTS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * @inner@ * @few@ * 2
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(8)
policy = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
prompts = iter(torch.utils.data.DataLoader(Rows(), batch_size=2))
n = 0
for rollout in range(@few@ * 2):
    taken = []
    with torch.no_grad():
        for _ in range(@inner@):
            truth.ask()
            taken.append(next(prompts))
            truth.got(samples=len(taken[-1]))
            with truth.within("evaluating", certain=False):
                time.sleep(@compute@)
                policy(taken[-1])
    for epoch in range(3):
        for x in taken:
            optimizer.zero_grad()
            policy(x).square().mean().backward()
            time.sleep(@compute@)
            optimizer.step()
            truth.step()
            n += 1
truth.parameters(72)
"""
BROKEN_GRAPHS = """
truth.unknown("start")
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * @steps@
    def __getitem__(self, i):
        time.sleep(@item@ / 2)
        return torch.randn(8)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.@kind@(net.parameters())
@torch.compile(backend="@backend@")
def loss_of(x):
    hidden = net[0](x)
    torch._dynamo.graph_break()
    return net[1](hidden).square().mean()
n = 0
for x in truth.each(torch.utils.data.DataLoader(Rows(), batch_size=2)):
    with truth.within("compiling", certain=False) if n < 2 else contextlib.nullcontext():
        loss_of(x).backward()
    time.sleep(@compute@)
    optimizer.step()
    truth.step()
    n += 1
truth.parameters(90)
"""

WHOLES = (
    Whole("teacher with a loader", TEACHERS, 1.5),
    Whole("prompts", PROMPTS, 1.5),
    Whole("broken graphs", BROKEN_GRAPHS.replace("@backend@", "eager"), 0.3),
    Whole("broken graphs, aot", BROKEN_GRAPHS.replace("@backend@", "aot_eager"), 0.3),
    Whole("daemonised", DAEMONISED, endings=False),
    Whole("ensemble", ENSEMBLE),
    Whole("asynchronous loader", ASYNCHRONOUS),
    Whole("copied", COPIED),
    Whole("folds", FOLDS.replace("@keep@", ""), 1.5),
    Whole("folds kept", FOLDS.replace("@keep@", "kept.append((net, opt))"), 1.5),
    Whole("two stages", TWO_STAGES, 1.5),
    Whole("meta", META),
    Whole("second thread", SECOND_THREAD),
    Whole("training threads", TRAINING_THREADS),
    Whole("whole set", WHOLE_SET),
    Whole("rollouts", ROLLOUTS),
    Whole("evolution", EVOLUTION, 0.7),
    Whole("trials", TRIALS),
    Whole("teacher", TEACHER),
    Whole("stalled", STALLED, 0.6),
    Whole("alternating", ALTERNATING),
    Whole("before fork", BEFORE_FORK),
)
