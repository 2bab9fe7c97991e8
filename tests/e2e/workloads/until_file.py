"""A training that writes a byte for each step to STEPS until the file ENOUGH exists: until_file.py STEPS ENOUGH."""

import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

with Path(sys.argv[1]).open("wb", buffering=0) as steps:
    while not Path(sys.argv[2]).exists():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        steps.write(b".")
        time.sleep(0.01)
print("enough")
raise SystemExit(3)
