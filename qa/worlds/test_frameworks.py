"""Unmodified scripts of real frameworks: their steps are counted, and the hook does not change a bit of the results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.e2e.programs import PATIENCE, wait_for
from tests.hook.conftest import Run, listener, run
from tests.needs import need_module, require

from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session

__all__ = ["listener", "run"]  # fixtures

pytestmark = pytest.mark.e2e

# Printed at the end of each script: a digest of the trained model.
DIGEST = """
import hashlib, sys
def digest(model):
    parts = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        parts.update(value.detach().cpu().contiguous().numpy().tobytes())
    print("digest", parts.hexdigest())
"""

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
set_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16))
data = [{"input_ids": torch.arange(i, i + 16) % 64, "labels": torch.arange(i, i + 16) % 64} for i in range(48)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], num_train_epochs=3, per_device_train_batch_size=2, gradient_accumulation_steps=4,
    eval_strategy="epoch", save_steps=6, report_to=[], disable_tqdm=True, use_cpu=True, bf16=True,
    include_num_input_tokens_seen="all",
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
trainer.train()
print("steps", trainer.state.global_step)
print("samples", 3 * len(data))
print("tokens", int(trainer.state.num_input_tokens_seen))
digest(model)
"""

# A collator that takes time, and adds up what it takes: for batches of 2 in the training, of 8 in an evaluation.
SLOW = """
import time
class Slow:
    def __init__(self, collate):
        self.collate, self.seconds = collate, {2: 0.0, 8: 0.0}
    def __getattr__(self, name):
        return getattr(self.collate, name)
    def __call__(self, examples, *rest):
        begin = time.monotonic()
        time.sleep(0.01)
        batch = self.collate(examples, *rest)
        self.seconds[len(examples)] += time.monotonic() - begin
        return batch
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = ["[PAD]", "[EOS]", *(f"w{number}" for number in range(60))]
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[PAD]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=32, **names)
texts = [" ".join(f"w{(number * 7 + place) % 60}" for place in range(4 + number % 9)) for number in range(48)]
common = dict(
    output_dir=sys.argv[1], num_train_epochs=3, per_device_train_batch_size=2, per_device_eval_batch_size=8,
    eval_strategy="epoch", save_steps=20, report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
    include_num_input_tokens_seen="all",
)
def report(trainer):
    seconds = trainer.data_collator.seconds
    print("steps", trainer.state.global_step)
    print("samples", 3 * len(texts))
    print("waited_training", seconds[2])
    print("waited_evaluating", seconds[8])
    print("evaluated", sum(row.get("eval_runtime", 0.0) for row in trainer.state.log_history))
    digest(trainer.model)
"""

SFT = """
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, set_seed
from trl import SFTConfig, SFTTrainer
set_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=62, n_positions=32))
data = Dataset.from_dict({"text": texts})
arguments = SFTConfig(**common, gradient_accumulation_steps=4, max_length=32)
trainer = SFTTrainer(model, arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer())
trainer.data_collator = Slow(trainer.data_collator)
trainer.train()
print("tokens", int(trainer.state.num_input_tokens_seen))
report(trainer)
"""

SENTENCES = """
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
)
from transformers import BertConfig, BertModel, set_seed
set_seed(0)
shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
BertModel(BertConfig(vocab_size=62, max_position_embeddings=40, **shape)).save_pretrained(sys.argv[1] + "/bert")
tokenizer().save_pretrained(sys.argv[1] + "/bert")
parts = [models.Transformer(sys.argv[1] + "/bert"), models.Pooling(16)]
model = SentenceTransformer(modules=parts, device="cpu")
data = Dataset.from_dict({"anchor": texts, "positive": texts[1:] + texts[:1]})
trainer = SentenceTransformerTrainer(
    model, SentenceTransformerTrainingArguments(**common), train_dataset=data, eval_dataset=data,
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.data_collator = Slow(trainer.data_collator)
trainer.train()
report(trainer)
"""

# torchvision, which timm imports, lacks its own operators beside a build of torch for the CPU; transformers imports it
# where it finds it. So both have a folder of their own.
APART = Path(sys.prefix) / "timm"
IMAGES = """
import os, time, torch
os.mkdir(sys.argv[1])
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor boxes) -> Tensor")
import timm.data, timm.optim, timm.scheduler, timm.utils
timm.utils.random_seed(0)
class Images(torch.utils.data.Dataset):
    transform = None
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((3, 16, 16), index / self.count), index % 10
def loader(count, size, training):
    return timm.data.create_loader(
        Images(count), (3, 16, 16), size, is_training=training, num_workers=1, use_multi_epochs_loader=training,
        device=torch.device("cpu"), use_prefetcher=False,
    )
waited = {"training": timm.utils.AverageMeter(), "evaluating": timm.utils.AverageMeter()}
def measured(batches, phase):
    begin = time.monotonic()
    for batch in batches:
        waited[phase].update(time.monotonic() - begin)
        yield batch
        begin = time.monotonic()
model = timm.create_model("test_resnet", num_classes=10, pretrained=False, drop_path_rate=0.1)
optimizer = timm.optim.create_optimizer_v2(model, "lookahead_adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.9)
average = timm.utils.ModelEmaV3(model, decay=0.99)
schedule, _ = timm.scheduler.create_scheduler_v2(optimizer, num_epochs=2, warmup_epochs=1, updates_per_epoch=8)
scaler, loss = timm.utils.NativeScaler(device="cpu"), torch.nn.CrossEntropyLoss(label_smoothing=0.1)
saver = timm.utils.CheckpointSaver(
    model, optimizer, model_ema=average, checkpoint_dir=sys.argv[1], recovery_dir=sys.argv[1], max_history=1
)
train, held, updates, evaluated = loader(64, 4, True), loader(40, 8, False), 0, 0.0
for epoch in range(2):
    model.train()
    for number, (images, labels) in enumerate(measured(train, "training")):
        update = number % 2 == 1
        output = loss(model(images), labels) / 2
        scaler(output, optimizer, clip_grad=1.0, parameters=model.parameters(), need_update=update)
        if update:
            updates += 1
            optimizer.zero_grad()
            average.update(model, step=updates)
            schedule.step_update(updates)
    optimizer.sync_lookahead()
    for candidate in (model, average):
        candidate.eval()
        begin = time.monotonic()
        with torch.inference_mode():
            for images, labels in measured(held, "evaluating"):
                timm.utils.accuracy(candidate(images), labels, topk=(1, 5))
        evaluated += time.monotonic() - begin
    saver.save_checkpoint(epoch, metric=epoch)
    schedule.step(epoch + 1, epoch)
print("steps", updates)
print("samples", 2 * 64)
for phase, meter in waited.items():
    print("waited_" + phase, meter.sum)
print("evaluated", evaluated)
digest(model)
"""

# Its batches come from a generator, not from a loader.
NANO = """
import time, torch
from nano_gpt import config, trainer
from nano_gpt.datasets.data_loader import chunk_dataset, cycle_dataset
from nano_gpt.model import GPT
torch.manual_seed(0)
plan = config.TrainConfig(
    total_batch_size=256, micro_batch_size=4, sequence_length=16, max_steps=24, eval_steps=6, checkpoint_steps=8,
    checkpoint_dir=sys.argv[1], log_file=sys.argv[1] + ".log", warmup_steps=4,
)
shape = config.DatasetConfig(micro_batch_size=4, sequence_length=16)
model = GPT(config.GPTConfig(block_size=16, vocab_size=64, n_layer=1, n_head=2, n_embd=16), None)
state, compute, evaluated = trainer.WorkerState("cpu"), trainer.compute_loss, []
optimizer = trainer.create_optimizer(model, plan, None, state.is_cuda)
def measured(*arguments, backward):
    begin = time.monotonic()
    try:
        return compute(*arguments, backward=backward)
    finally:
        evaluated.append(0.0 if backward else time.monotonic() - begin)
trainer.compute_loss = measured
rows = [torch.arange(start, start + 257) % 64 for start in range(8)]
class Slow:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        for batch in self.batches:
            time.sleep(0.01)
            yield batch
train, held = Slow(cycle_dataset(chunk_dataset(shape, rows))), Slow(chunk_dataset(shape, rows))
trainer.train(model, optimizer, state, plan, train, config.EvalConfig(validation_steps=20), shape, held)
print("steps", plan.max_steps)
print("evaluated", sum(evaluated[1:]))  # the first one is before the training, while the program starts
digest(model)
"""

LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader
lightning.seed_everything(0)
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def validation_step(self, batch, index):
        self.layer(batch)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
data = [torch.randn(8) for _ in range(40)]
module = Module()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    default_root_dir=sys.argv[1],
)
trainer.fit(module, DataLoader(data, batch_size=4), DataLoader(data, batch_size=4))
print("steps", trainer.global_step)
print("samples", 2 * len(data))
digest(module)
"""

FABRIC = """
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
fabric = Fabric(accelerator="cpu")
fabric.seed_everything(0)
data, steps = [torch.randn(8) for _ in range(40)], 0
for fold in range(4):
    model = torch.nn.Linear(8, 2)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    train = fabric.setup_dataloaders(DataLoader(data[:fold * 10] + data[fold * 10 + 10:], batch_size=2))
    held = fabric.setup_dataloaders(DataLoader(data[fold * 10:fold * 10 + 10], batch_size=2))
    for batch in train:
        model.train()
        fabric.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    model.eval()
    for batch in held:
        with torch.no_grad():
            model(batch)
print("steps", steps)
print("samples", 2 * steps)
digest(model)
"""

SKORCH = """
import numpy, torch, skorch
torch.manual_seed(0)
rows = numpy.random.default_rng(0).normal(size=(320, 8)).astype("float32")
class Callback(skorch.callbacks.Callback):
    samples = steps = 0
    def on_train_end(self, net, **kwargs):
        Callback.samples = sum(row["train_batch_count"] for row in net.history) * 16
net = skorch.NeuralNetRegressor(
    torch.nn.Linear, module__in_features=8, module__out_features=1, max_epochs=3, batch_size=16, verbose=0,
    train_split=skorch.dataset.ValidSplit(5), callbacks=[Callback()],
)
net.fit(rows, rows[:, :1])
print("steps", Callback.samples // 16)
print("samples", Callback.samples)
digest(net.module_)
"""

IGNITE = """
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
data = [(torch.randn(8), torch.randn(2)) for _ in range(64)]
held = DataLoader(data[:24], batch_size=8)
trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
evaluator = create_supervised_evaluator(model)
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), lambda: evaluator.run(held))
trainer.run(DataLoader(data, batch_size=4), max_epochs=3)
print("steps", trainer.state.iteration)
print("samples", 3 * len(data))
digest(model)
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader([torch.randn(8) for _ in range(80)], batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = 0
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += accelerator.sync_gradients
print("steps", steps)
print("samples", 80)
digest(accelerator.unwrap_model(model))
"""

RANKS = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(15):
    optimizer.zero_grad()
    model(torch.full((4, 8), float(dist.get_rank()))).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("steps", 15)
    digest(model)
dist.destroy_process_group()
"""

FULLY_SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())
for number in range(15):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
result = {name: value.full_tensor() for name, value in model.state_dict().items()}
if dist.get_rank() == 0:
    print("steps", 15)
    class Whole:
        state_dict = lambda self: result
    digest(Whole())
dist.destroy_process_group()
"""

COMPILED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters())
for number in range(10):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = compiled(torch.full((4, 8), float(number))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert not torch._dynamo.utils.counters["graph_break"]
print("steps", 10)
digest(model)
"""

# What each program prints at its end; some of it is the same with and without the hook.
SAME = ("steps", "samples", "tokens", "digest")
FIGURE = re.compile(r"(steps|samples|tokens|digest|waited_training|waited_evaluating|evaluated) (\S+)$")

LAUNCH = ("-m", "accelerate.commands.launch", "--cpu")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def ended(listener: Sessions, count: int) -> list[Session]:
    wait_for(lambda: len(listener.view()) == count and not any(s.connected for s in listener.view()), 60, "all end")
    return list(listener.view())


@pytest.mark.parametrize(
    ("module", "program", "options"),
    [
        pytest.param("transformers", TRAINER, (), id="trainer"),
        pytest.param("trl", SLOW + SFT, (), id="sft", marks=pytest.mark.everything),
        pytest.param("sentence_transformers", SLOW + SENTENCES, (), id="sentences", marks=pytest.mark.everything),
        pytest.param("lightning", LIGHTNING, (), id="lightning", marks=pytest.mark.everything),
        pytest.param("accelerate", ACCELERATE, (), id="accelerate", marks=pytest.mark.everything),
        pytest.param("accelerate", ACCELERATE, LAUNCH, id="accelerate-launch", marks=pytest.mark.everything),
        pytest.param("lightning", FABRIC, (), id="fabric", marks=pytest.mark.everything),
        pytest.param("timm", IMAGES, (), id="timm", marks=pytest.mark.everything),
        pytest.param("nano_gpt", NANO, (), id="nanogpt", marks=pytest.mark.everything),
        pytest.param("skorch", SKORCH, (), id="skorch", marks=pytest.mark.everything),
        pytest.param("ignite", IGNITE, (), id="ignite", marks=pytest.mark.everything),
        pytest.param("torch", RANKS, TORCHRUN, id="torchrun", marks=pytest.mark.everything),
        pytest.param("torch", FULLY_SHARDED, TORCHRUN, id="fsdp2", marks=pytest.mark.everything),
        pytest.param("torch", COMPILED, (), id="compiled", marks=pytest.mark.everything),
    ],
)
def test_steps_are_counted_and_results_are_the_same(
    module: str, program: str, options: tuple[str, ...], listener: Sessions, run: Run, tmp_path: Path
) -> None:
    need_module("numpy")
    if apart := module == "timm":
        require(APART.exists(), f"{module} is not installed: make {APART}")
    else:
        need_module(module)
    path = {"PYTHONPATH": str(APART)} if apart else {}
    both = [
        run(DIGEST + program, *options, arguments=(str(tmp_path / hook),), GPUGAUGE_HOOK=hook, **path)
        for hook in ("0", "1")
    ]
    plain, watched = (process.communicate(None, 2 * PATIENCE)[0] for process in both)
    # Frameworks also print other things, and durations.
    expected, printed = (
        {
            name: value
            for line in output.splitlines()
            if (found := FIGURE.match(line))
            for name, value in [found.groups()]
        }
        for output in (plain, watched)
    )
    assert {name: expected.get(name) for name in SAME} == {name: printed.get(name) for name in SAME}
    assert printed.keys() >= {"steps", "digest"}
    for session in ended(listener, 2 if options == TORCHRUN else 1):
        assert session.snap is not None
        assert session.snap.steps is not None
        assert (session.snap.steps.count, session.snap.errors) == (int(printed["steps"]), 0)
        for name, counted in (("samples", session.snap.samples), ("tokens", session.snap.tokens)):
            assert name not in printed or counted == int(printed[name]), name
        if module in {"transformers", "lightning"}:
            assert session.record is not None
            assert session.record.seconds["evaluating"] > 0
            assert (session.record.seconds["checkpointing"] > 0) == (program is not FABRIC)
        for name, seconds in measured(session).items():
            assert name not in printed or seconds == pytest.approx(float(printed[name]), rel=0.2, abs=0.5), name


def measured(session: Session) -> dict[str, float]:
    """Return the seconds that programs print by themselves, as the hook reports them."""
    assert session.record is not None
    waits = {phase: session.record.waits.get(phase, 0.0) for phase in ("training", "evaluating")}
    evaluated = session.record.seconds["evaluating"] + waits["evaluating"]
    return {"evaluated": evaluated, **{f"waited_{phase}": seconds for phase, seconds in waits.items()}}


CELL = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(7):
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.everything
def test_the_kernel_of_a_notebook_is_counted(listener: Sessions, run: Run, tmp_path: Path) -> None:
    need_module("ipykernel")
    program = f"""
        from jupyter_client.manager import start_new_kernel
        manager, client = start_new_kernel()
        for cell in ({CELL!r}, "1 / 0"):
            print(client.execute_interactive(cell, output_hook=lambda _: None)["content"]["status"])
        client.stop_channels()
        manager.shutdown_kernel()
    """
    output, _ = run(program, IPYTHONDIR=str(tmp_path)).communicate(None, 2 * PATIENCE)
    assert output == "ok\nerror\n"
    (session,) = ended(listener, 1)
    assert session.snap is not None
    assert session.snap.steps is not None
    assert session.snap.steps.count == 7
