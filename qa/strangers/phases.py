"""What a program does besides training. `before` runs once, `after` runs after each update; `n` counts the updates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A part of a program. `@each@` is the number of updates between two of its phases, `@long@` a duration."""

    name: str
    before: str = ""
    after: str = ""
    weight: float = 1.0
    begin: str = ""  # before each update


VALIDATION = """
class Held(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(@long@ / 10)
        return torch.ones(8)
held = torch.utils.data.DataLoader(Held(), batch_size=2)
"""
EVALUATE = """
def evaluate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for y in truth.each(held, "evaluating"):
            time.sleep(@long@ / 8)
            total += model(y).sum().item()
    model.train()
    return total
"""
INFERENCE = """
@torch.inference_mode()
def evaluate():
    truth.ask("evaluating")
    for y in held:
        truth.got("evaluating")
        time.sleep(@long@ / 8)
        model(y)
        truth.ask("evaluating")
    truth.stop()
"""
# skorch and others: the mode is set for each batch, after it has been fetched. The first batch of an evaluation then
# counts as training until the next one.
STEPWISE = """
def evaluate():
    for y in truth.each(held, "evaluating"):
        with torch.no_grad(), truth.within("evaluating", certain=False):
            model.train(False)
            time.sleep(@long@ / 8)
            model(y)
"""
CUT_SHORT = """
def evaluate():
    model.eval()
    for number, y in enumerate(truth.each(held, "evaluating")):
        with torch.no_grad():
            time.sleep(@long@ / 8)
            model(y)
        if number == 1:
            truth.stop()
            break
    model.train()
"""
SHOWN = """
truth.note("enter", phase="evaluating", certain=False)
model.eval()
with torch.no_grad():
    time.sleep(@long@ / 20)
    model(torch.ones(2, 8))
"""
SHOWN_UNTIL = """
truth.note("leave")
model.train()
"""
EVERY = "if n % @each@ == 0:\n    "
OWN_EVALUATION = """
def evaluate():
    model.eval()
    with torch.no_grad(), truth.within("evaluating", certain=False):
        for y in torch.ones(5, 2, 8):
            time.sleep(@long@ / 5)
            model(y)
    model.train()
"""
SLOW_FILE = """
class SlowFile(io.BytesIO):
    slept = False
    def write(self, data):
        if not self.slept:
            self.slept = True
            time.sleep(@long@)
        return super().write(data)
"""
DECORATED = """
@gpugauge.hook.phase("eval")
def evaluate():
    with truth.within("evaluating"):
        time.sleep(@long@)
"""
FROZEN = """
encoder = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
encoder.requires_grad_(False)
encoder.eval()
"""
LONG_START = """
truth.unknown("start")
index = {}
for shard in range(4):
    time.sleep(@start@ / 4)
    index[shard] = list(range(1000))
"""
WATCHED_START = """
gpugauge.hook.watch()
truth.watched()
time.sleep(@start@)
"""
COMPILED = """
wide = torch.compile(torch.nn.Linear(8, 8), backend="eager")
with truth.within("compiling", certain=False):
    wide(torch.ones(2, 8))
"""
GENERATED = """
if n % @each@ == 0:
    with gpugauge.hook.phase("generate"), truth.within("generating"), torch.no_grad():
        token = torch.zeros(1, 8)
        for _ in range(4):
            token = token + model(token).sum()
            time.sleep(@long@ / 4)
"""
NESTED = """
if n % @each@ == 0:
    with gpugauge.hook.phase("eval"), truth.within("evaluating"):
        time.sleep(@long@ / 2)
        with gpugauge.hook.phase("checkpoint"), truth.within("checkpointing"):
            time.sleep(@long@)
        time.sleep(@long@ / 2)
"""
IN_THREAD = """
def upload():
    with gpugauge.hook.phase("checkpoint"):
        time.sleep(@long@)
uploads = []
"""
UPLOADED = """
if n % @each@ == 0:
    uploads.append(threading.Thread(target=upload))
    uploads[-1].start()
"""
NAMED = """
if n % @each@ == 0:
    with gpugauge.hook.phase("augment"), truth.within("other"):
        time.sleep(@long@)
"""
RAISED = """
if n % @each@ == 0:
    try:
        with gpugauge.hook.phase("eval"), truth.within("evaluating"):
            time.sleep(@long@)
            raise ValueError("not a number")
    except ValueError:
        pass
"""
DECLARED_VALIDATION = """
def held_out():
    for _ in range(4):
        time.sleep(@long@ / 4)
        yield torch.ones(2, 8)
"""
DECLARED_EVALUATION = """
if n % @each@ == 0:
    with gpugauge.hook.phase("eval"), truth.within("evaluating"), torch.no_grad():
        for y in truth.each(gpugauge.hook.batches(held_out()), "evaluating"):
            time.sleep(@long@ / 4)
            model(y)
"""
SAVED = "with truth.within('checkpointing'):\n        torch.save({'model': model.state_dict(), 'n': n}, SlowFile())\n"
WITH_EVALUATION = 'with gpugauge.hook.phase("eval"), truth.within("evaluating"):\n        time.sleep(@long@)\n'
WORK_THREAD = """
if n % @each@ == 0:
    worker = threading.Thread(target=time.sleep, args=(@long@,))
    worker.start()
    worker.join()
"""
OTHER_PROCESS = """
if n == @each@:
    import subprocess
    subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(8, 2)(torch.ones(1, 8))"], check=True)
"""

PHASES = (
    Phase("none", weight=5),
    Phase("evaluation", VALIDATION + EVALUATE, EVERY + "evaluate()", 3),
    Phase("evaluation, left in it", VALIDATION + EVALUATE.replace("model.train()", ""), EVERY + "evaluate()"),
    Phase("evaluation, train(False)", VALIDATION + EVALUATE.replace("eval()", "train(False)"), EVERY + "evaluate()"),
    Phase("evaluation by step", VALIDATION + STEPWISE, EVERY + "evaluate()", 1.5, "model.train()"),
    Phase("evaluation, cut short", VALIDATION + CUT_SHORT, EVERY + "evaluate()"),
    Phase("shown after each", "", SHOWN, 1.0, SHOWN_UNTIL),
    Phase("inference mode", VALIDATION + INFERENCE, EVERY + "evaluate()"),
    Phase("own evaluation", OWN_EVALUATION, EVERY + "evaluate()"),
    Phase("frozen part", FROZEN, "encoder.eval()\nencoder(torch.ones(1, 8))"),
    Phase("saved", SLOW_FILE, EVERY + SAVED, 2),
    Phase("declared evaluation", "", EVERY + WITH_EVALUATION, 2),
    Phase("decorated", DECORATED, EVERY + "evaluate()"),
    Phase("long start", LONG_START, ""),
    Phase("watched start", WATCHED_START, ""),
    Phase("compiled", COMPILED, "", 0.4),
    Phase("generated", "", GENERATED),
    Phase("nested", "", NESTED),
    Phase("in a thread", IN_THREAD, UPLOADED),
    Phase("named", "", NAMED),
    Phase("raised", "", RAISED),
    Phase("declared loader", DECLARED_VALIDATION, DECLARED_EVALUATION),
    Phase("other process", "", OTHER_PROCESS, 0.4),
    Phase("joined thread", "", WORK_THREAD),
)
