"""A real training of a small model on the CPU, at an even rate, for some seconds or until the file `OUT.enough` exists;
writes the number and the times of its steps: small.py SECONDS OUT.
"""

import json
import sys
import time
from pathlib import Path

import torch

seconds, out = float(sys.argv[1]), sys.argv[2]
enough = Path(f"{out}.enough")
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16)

times, start = [], time.time()


def ended() -> bool:
    """Return whether the training ends now."""
    return time.time() - start >= seconds or enough.exists()


while not ended():
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        times.append(time.time())
        # At fixed times, so that the rate does not depend on the load of the machine.
        time.sleep(max(0.0, start + len(times) / 20 - time.time()))
        if ended():
            break
Path(out).write_text(json.dumps({"steps": len(times), "times": times, "end": time.time()}))
