"""Source text of optimizers that the program itself wrote, around or below those of torch."""

from __future__ import annotations

SUBCLASS = """
class Noisy(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(torch.randn_like(p.grad), alpha=1e-4)
        return super().step(closure)
other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1), requires_grad=False)], lr=0.1)
optimizer = Noisy(model.parameters(), lr=0.01)
"""
LOOKAHEAD = """
class Lookahead:
    def __init__(self, inner, k=@every@):
        self.inner, self.k, self.n = inner, k, 0
        self.slow = [p.detach().clone() for g in inner.param_groups for p in g["params"]]
    def zero_grad(self):
        self.inner.zero_grad(set_to_none=True)
    def step(self):
        self.inner.step()
        self.n += 1
        if self.n % self.k == 0:
            fast = [p for g in self.inner.param_groups for p in g["params"]]
            with torch.no_grad():
                for slow, p in zip(self.slow, fast):
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)
optimizer = Lookahead(torch.optim.@kind@(model.parameters()))
"""
SAM = """
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def step(self, closure):
        saved = []
        for group in self.param_groups:
            for p in group["params"]:
                saved.append(p.detach().clone())
                p.add_(p.grad, alpha=group["rho"])
        with torch.enable_grad():
            closure()
        old = iter(saved)
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(next(old))
        self.base.step()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.01)
"""
OWN = """
class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])
optimizer = Sign(model.parameters())
"""
TIMED = """
optimizer = torch.optim.@kind@(model.parameters())
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - begin)
    return inner
spent = []
optimizer.step = timed(optimizer.step)
"""
