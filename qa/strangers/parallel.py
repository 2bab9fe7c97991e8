"""Whole programs with several training processes, and those of frameworks."""

from __future__ import annotations

from qa.strangers.text import fill
from qa.strangers.wholes import Whole

RANKS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = @optimizer@
n = 0
for _ in range(@steps@):
    optimizer.zero_grad()
    loss = net(torch.randn(2, 8)).square().mean()
    time.sleep(@compute@ * (1 + 2 * dist.get_rank()))
    loss.backward()
    optimizer.step()
    truth.step()
    n += 1
truth.parameters(sum(p.numel() for group in optimizer.param_groups for p in group['params']))
dist.barrier()
truth.end("finished")
dist.destroy_process_group()
"""
SPAWNED = """
import torch.multiprocessing as mp
def work(rank, updates):
    torch.set_num_threads(1)
    net = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    for n in range(updates):
        net(torch.randn(2, 8)).square().mean().backward()
        optimizer.step()
        truth.step()
        time.sleep(@compute@)
    truth.parameters(18)
    @child@
if __name__ == "__main__":
    @start@
"""
SPAWN = "mp.spawn(work, args=(@steps@,), nprocs=2)"
CRASH = """
time.sleep(rank)
if rank == 1:
    truth.end("error")
    raise ValueError("rank 1 is lost")
truth.end("killed")
time.sleep(60)
"""
CAUGHT = """
try:
    mp.spawn(work, args=(@steps@,), nprocs=2)
except mp.ProcessRaisedException as error:
    print("a rank failed")
"""
FORKED = """
children = []
for rank in range(2):
    child = mp.get_context("fork").Process(target=work, args=(rank, @steps@ + 5 * rank))
    child.start()
    children.append(child)
for child in children:
    child.join()
print([child.exitcode for child in children])
"""
HOGWILD = """
import torch.multiprocessing as mp
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(8)
def work(rank, net):
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(@few@):
        for x in truth.each(torch.utils.data.DataLoader(Rows(), batch_size=2)):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            truth.step()
            time.sleep(@compute@)
    truth.parameters(18)
    truth.end("finished")
if __name__ == "__main__":
    net = torch.nn.Linear(8, 2)
    net.share_memory()
    mp.spawn(work, args=(net,), nprocs=2)
    net.eval()
    with torch.no_grad():
        for x in truth.each(torch.utils.data.DataLoader(Rows(), batch_size=2), "evaluating"):
            net(x)
            time.sleep(@compute@)
    truth.end("finished")
"""
REDUCED = """
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(8, 2)
for p in net.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
for _ in range(@steps@):
    net(torch.randn(2, 8)).square().mean().backward()
    truth.passed()
    time.sleep(@compute@ * (2 - dist.get_rank()))
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    truth.step()
    n += 1
truth.parameters(18)
truth.end("finished")
dist.destroy_process_group()
"""
TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16)
model = GPT2LMHeadModel(config)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        row = torch.arange(i, i + 16) % 64
        return {"input_ids": row, "labels": row}
class Count(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **kwargs):
        truth.used(2 * @accumulate@, 32 * @accumulate@)
        truth.step()
        time.sleep(@compute@)
arguments = TrainingArguments(
    output_dir="out", max_steps=@few@ * 10, per_device_train_batch_size=2, gradient_accumulation_steps=@accumulate@,
    report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no", logging_strategy="no",
)
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Count()])
truth.unknown("batches", "waits")
trainer.train()
n = trainer.state.global_step
truth.parameters(sum(p.numel() for p in model.parameters()))
"""
LIGHTNING = """
import lightning, logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.randn(8)
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, index):
        time.sleep(@compute@)
        truth.used(len(batch))
        return self.layer(batch).square().mean()
    def on_before_zero_grad(self, optimizer):
        pass
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        truth.step()
trainer = lightning.Trainer(
    max_epochs=@few@, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, default_root_dir="out",
)
truth.unknown("batches", "waits")
trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2))
n = trainer.global_step
truth.parameters(18)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=@accumulate@)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return @steps@ * 2
    def __getitem__(self, i):
        time.sleep(@item@)
        return torch.randn(8)
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(net.parameters())
net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(Rows(), batch_size=2))
n = 0
truth.unknown("batches", "waits")
for x in truth.each(loader):
    with accelerator.accumulate(net):
        accelerator.backward(net(x).square().mean())
        time.sleep(@compute@)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            truth.step()
            n += 1
truth.parameters(18)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ZERO = (
    "__import__('torch.distributed.optim', fromlist=['x']).ZeroRedundancyOptimizer("
    "net.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)"
)


FINISHED = 'truth.end("finished")'
PARALLEL = (
    Whole("ranks", fill(RANKS, optimizer="torch.optim.AdamW(net.parameters())"), 1.0, TORCHRUN, endings=False),
    Whole("ranks, sharded state", fill(RANKS, optimizer=ZERO), 0.5, TORCHRUN, endings=False),
    Whole("reduced by hand", REDUCED, 1.0, TORCHRUN, endings=False),
    Whole("spawned", fill(SPAWNED, start=SPAWN, child=FINISHED), endings=False),
    Whole("spawned, one fails", fill(SPAWNED, start=CAUGHT, child=CRASH), endings=False),
    Whole("hogwild", HOGWILD, endings=False),
    Whole("forked", fill(SPAWNED, start=FORKED, child=FINISHED), endings=False),
)
FRAMEWORKS = (
    Whole("transformers", TRAINER),
    Whole("lightning", LIGHTNING),
    Whole("accelerate", ACCELERATE),
)
