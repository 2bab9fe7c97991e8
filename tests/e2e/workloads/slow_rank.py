"""Two ranks; rank 1 takes a fifth of a second longer for each step, and rank 0 waits for it."""

import os
import time

import torch

from tests.e2e.workloads.loop import batches, begun, model_and_optimizer

# The rendezvous is a file, because a port that is free now may be in use later.
rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
model, _ = model_and_optimizer()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    if rank == 1:
        time.sleep(0.2)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if number == 12:  # DDP has taken the time of ten steps
        begun()
