"""Ways to use an optimizer. `setup` creates it, `update` takes the batch `x` of eight columns and records the step."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from qa.strangers.text import fill, lines
from qa.strangers.wrappers import LOOKAHEAD, OWN, SAM, SUBCLASS, TIMED

ALL = "sum(p.numel() for p in model.parameters())"


@dataclass(frozen=True)
class Optimizer:
    """A part of a program; `weight` is how often it is drawn. The tokens of `choices` are drawn for each program."""

    name: str
    setup: str
    update: str
    parameters: str = ALL
    unknown: str = ""  # values that need not be reported
    weight: float = 1.0

    def drawn(self, random: Random) -> tuple[str, str]:
        """Return the setup and the update with everything drawn."""
        kinds = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "ASGD", "Adamax", "Rprop", "Adadelta")
        drawn = {"kind": random.choice(kinds), "every": random.randint(2, 5), "width": random.choice((2, 3, 8, 16))}
        unknown = f"truth.unknown({', '.join(map(repr, self.unknown.split()))})" if self.unknown else ""
        known = f"truth.parameters({self.parameters})" if self.parameters else ""
        return fill(lines(MODEL, self.setup, known, unknown), **drawn), fill(self.update, **drawn)


MODEL = "model = torch.nn.Sequential(torch.nn.Linear(8, @width@), torch.nn.ReLU(), torch.nn.Linear(@width@, 2))"
PLAIN = """
optimizer.zero_grad()
loss = model(x).square().mean()
loss.backward()
optimizer.step()
truth.step()
"""
CLOSURE = """
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
optimizer.step(closure)
truth.step()
"""
GAN = """
critic = torch.nn.Linear(2, 1)
g_opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
d_opt = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
rounds = 0
"""
GAN_ROUND = """
fake = model(x)
d_opt.zero_grad()
(critic(fake.detach()).mean() - critic(x[:, :2]).mean()).backward()
d_opt.step()
truth.step()
rounds += 1
if rounds % @ratio@ == 0:
    g_opt.zero_grad()
    (-critic(model(x)).mean()).backward()
    g_opt.step()
"""
BOTH = "sum(p.numel() for m in (model, critic) for p in m.parameters())"
IN_BACKWARD = """
owners = {p: torch.optim.@kind@([p]) for p in model.parameters()}
def stepping(p):
    owners[p].step()
    owners[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(stepping)
"""
BACKWARD = "model(x).square().mean().backward()\ntruth.step()\n"
ACCUMULATED = """
(model(x).square().mean() / @every@).backward()
truth.passed()
micro += 1
if micro % @every@ == 0:
    optimizer.step()
    optimizer.zero_grad()
    truth.step()
"""
SUMMED = """
total = total + model(x).square().mean()
micro += 1
if micro % (@every@ if n >= @late@ else 1) == 0:
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    truth.step()
    total = 0.0
"""
SCALED = """
optimizer.zero_grad()
scaler.scale(model(x).square().mean()).backward()
scaler.step(optimizer)
scaler.update()
truth.step()
"""
OVERFLOWING = """
optimizer.zero_grad()
factor = float("inf") if n % 4 == 2 else 1.0
scaler.scale(model(x).square().mean() * factor).backward()
scaler.step(optimizer)
scaler.update()
if factor == 1.0:
    truth.step()
"""
COMPILED = """
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
@torch.compile(backend="@backend@")
def fused_step():
    optimizer.step()
compiled = False
"""
COMPILED_STEP = """
optimizer.zero_grad()
model(x).square().mean().backward()
with contextlib.nullcontext() if compiled else truth.within("compiling", certain=False):
    fused_step()
compiled = True
truth.step()
"""
BY_HAND = """
loss = model(x).square().mean()
grads = torch.autograd.grad(loss, list(model.parameters()))
with torch.no_grad():
    for p, g in zip(model.parameters(), grads):
        p -= 0.01 * g
truth.step()
"""
BY_HAND_BACKWARD = """
model(x).square().mean().backward()
with torch.no_grad():
    for p in model.parameters():
        p -= 0.01 * p.grad
        p.grad = None
truth.step()
"""
FUNCTIONAL = """
weights = {name: p.detach() for name, p in model.named_parameters()}
def objective(weights, x):
    return torch.func.functional_call(model, weights, (x,)).square().mean()
"""
FUNCTIONAL_STEP = """
slopes = torch.func.grad(objective)(weights, x)
weights = {name: w - 0.01 * slopes[name] for name, w in weights.items()}
truth.step()
"""
TICK = """
loss = model(x).square().mean()
loss.backward()
with torch.no_grad():
    for p in model.parameters():
        p.sub_(p.grad, alpha=0.01)
        p.grad = None
gpugauge.hook.@call@
truth.step()
"""
SWA = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
average = torch.optim.swa_utils.AveragedModel(model)
schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01)
"""
RESUMED = """
first = torch.optim.AdamW(model.parameters())
saved = io.BytesIO()
with truth.within("checkpointing"):
    torch.save({"model": model.state_dict(), "optimizer": first.state_dict()}, saved)
del first
saved.seek(0)
state = torch.load(saved, weights_only=True)
model.load_state_dict(state["model"])
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(state["optimizer"])
"""
SPLIT = """
table = torch.nn.Embedding(10, 8, sparse=True)
dense = torch.optim.AdamW(model.parameters())
sparse = torch.optim.SparseAdam(table.parameters())
"""
SPLIT_STEP = """
(model(x + table(torch.arange(len(x)) % 10)).square().mean()).backward()
for opt in (sparse, dense):
    opt.step()
    opt.zero_grad()
truth.step()
"""
SCHEDULED = """
optimizer = torch.optim.@kind@(model.parameters())
sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.9 ** e)
"""
GROUPS = """
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}]
optimizer = torch.optim.AdamW(groups)
"""
TWENTY = """
zoo = [torch.optim.@kind@(model.parameters()) for _ in range(20)]
optimizer = zoo[7]
"""
SAMPLES = (
    "tick()",
    "step()",
    "tick(samples=len(x)); truth.ticked(samples=len(x))",
    "step(samples=len(x), tokens=x.numel()); truth.ticked(samples=len(x), tokens=x.numel())",
)
WRONG = "wrong = (-3, float('nan'), 'many', None, 2 ** 80, object(), float('inf'), [])"
TICKS = tuple(TICK.replace("@call@", call) for call in SAMPLES)
WRONG_TICK = TICK.replace("@call@", "tick(samples=wrong[n % len(wrong)])")
ANY = "optimizer = torch.optim.@kind@(model.parameters())"

OPTIMIZERS = (
    Optimizer("plain", ANY, PLAIN, weight=4),
    Optimizer("foreach", "optimizer = torch.optim.AdamW(model.parameters(), foreach=True)", PLAIN),
    Optimizer("fused", "optimizer = torch.optim.Adam(model.parameters(), fused=True)", PLAIN),
    Optimizer("lbfgs", "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)", CLOSURE),
    Optimizer("closure", ANY, CLOSURE),
    Optimizer("subclass", SUBCLASS, PLAIN, f"{ALL}, 1 + {ALL}", weight=2),
    Optimizer("lookahead", LOOKAHEAD, PLAIN),
    Optimizer("sam", SAM, CLOSURE.replace("optimizer.step(", "closure()\noptimizer.step(")),
    Optimizer("own", OWN, PLAIN),
    Optimizer("gan", GAN, GAN_ROUND.replace("@ratio@", "1"), BOTH),
    # An optimizer that has not stepped yet is not known to belong to the loop (docs/hook.md).
    Optimizer("gan n:1", GAN, GAN_ROUND.replace("@ratio@", "@every@"), f"{BOTH}, 3"),
    Optimizer("in backward", IN_BACKWARD, BACKWARD),
    Optimizer("accumulated", "micro = 0\n" + ANY, ACCUMULATED),
    Optimizer("summed", "micro, total = 0, 0.0\n" + ANY, SUMMED.replace("@late@", "0")),
    Optimizer("summed later", "micro, total = 0, 0.0\n" + ANY, SUMMED.replace("@late@", "9")),
    Optimizer("scaled", 'scaler = torch.amp.GradScaler("cpu", init_scale=8.0)\n' + ANY, SCALED),
    Optimizer("overflowing", 'scaler = torch.amp.GradScaler("cpu", init_scale=8.0)\n' + ANY, OVERFLOWING),
    Optimizer("scheduled", SCHEDULED, PLAIN + "sched.step()"),
    Optimizer("compiled", COMPILED.replace("@backend@", "eager"), COMPILED_STEP, unknown="steps", weight=0.4),
    Optimizer("compiled aot", COMPILED.replace("@backend@", "aot_eager"), COMPILED_STEP, unknown="steps", weight=0.2),
    Optimizer("by hand, backward", "", BY_HAND_BACKWARD, "", unknown="steps parameters"),
    Optimizer("by hand", "", BY_HAND, "", unknown="steps parameters", weight=1.5),
    Optimizer("functional", FUNCTIONAL, FUNCTIONAL_STEP, "", unknown="steps parameters"),
    *(Optimizer(f"tick {n}", "", tick, "", "parameters", 0.5) for n, tick in enumerate(TICKS)),
    Optimizer("tick wrong", WRONG, WRONG_TICK, "", "parameters samples", 0.7),
    Optimizer("twenty", TWENTY, PLAIN),
    Optimizer("two groups", GROUPS, PLAIN),
    Optimizer("two optimizers", SPLIT, SPLIT_STEP, f"80 + {ALL}"),
    Optimizer("timed", TIMED, PLAIN),
    Optimizer("averaged", SWA, PLAIN + "average.update_parameters(model)\nschedule.step()"),
    Optimizer("resumed", RESUMED, PLAIN),
)  # fmt: skip
