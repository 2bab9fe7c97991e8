"""Source text of programs with several optimizers, one after another or in turns."""

from __future__ import annotations

FOLDS = """
kept = []
n = 0
rows = torch.randn(40, 8)
for fold in range(@folds@):
    net = torch.nn.Linear(8, 3)
    opt = torch.optim.@kind@(net.parameters())
    @keep@
    for i in range(@few@):
        opt.zero_grad()
        net(rows[fold::5]).square().sum().backward()
        time.sleep(@slow@)
        opt.step()
        truth.step()
        n += 1
truth.parameters(27, *range(27, 27 * @folds@ + 1, 27))
"""
TWO_STAGES = """
body, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
n = 0
def stage(parameters, lr, updates):
    global n
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    for _ in range(updates):
        optimizer.zero_grad()
        head(torch.relu(body(torch.randn(4, 8)))).square().mean().backward()
        time.sleep(@compute@)
        optimizer.step()
        truth.step()
        n += 1
body.requires_grad_(False)
stage(head.parameters(), 1e-3, @steps@ // 2)
body.requires_grad_(True)
time.sleep(@gap@)
stage([*body.parameters(), *head.parameters()], 1e-4, @steps@ // 2)
truth.parameters(178, 178 + 34)
"""
META = """
import copy
meta = torch.nn.Linear(8, 2)
outer = torch.optim.Adam(meta.parameters(), lr=1e-3)
n = 0
while n < @steps@:
    learner = copy.deepcopy(meta)
    inner = torch.optim.SGD(learner.parameters(), lr=0.01)
    for _ in range(@inner@):
        inner.zero_grad()
        learner(torch.randn(4, 8)).square().mean().backward()
        inner.step()
        truth.step()
        n += 1
        time.sleep(@compute@)
    outer.zero_grad()
    for p, q in zip(meta.parameters(), learner.parameters()):
        p.grad = p.detach() - q.detach()
    outer.step()
truth.unknown("parameters")
"""
TRIALS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(8)
n = 0
def objective(lr):
    global n
    net = torch.nn.Linear(8, 2)
    optimizer = getattr(torch.optim, "Adam" if lr > 0.01 else "SGD")(net.parameters(), lr=lr)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    for epoch in range(2):
        for x in truth.each(loader):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            time.sleep(@compute@)
            optimizer.step()
            truth.step()
            n += 1
            if loss.item() > 0.9 and epoch:
                raise RuntimeError("pruned")
    return loss.item()
best = []
for trial in range(@folds@):
    try:
        best.append(objective(10.0 ** -(1 + trial % 4)))
    except RuntimeError as error:
        print(error)
truth.parameters(18, *range(18, 18 * @folds@ + 1, 18))
"""
COPIED = """
import copy
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.@kind@(net.parameters())
n = 0
for part in range(2):
    for _ in range(@steps@ // 2):
        net(torch.randn(2, 8)).mean().backward()
        optimizer.step()
        truth.step()
        n += 1
        time.sleep(@compute@)
    net, optimizer = copy.deepcopy((net, optimizer))
truth.parameters(18, 36, 54)
"""
ENSEMBLE = """
nets = [torch.nn.Linear(8, 2) for _ in range(@inner@)]
optimizers = [torch.optim.@kind@(net.parameters()) for net in nets]
n = 0
for _ in range(@steps@):
    x = torch.randn(4, 8)
    for net, optimizer in zip(nets, optimizers):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    truth.step()
    n += 1
    time.sleep(@compute@)
truth.parameters(18 * @inner@)
"""
