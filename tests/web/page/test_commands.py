"""The commands in all advice that there is."""

from __future__ import annotations

from gpugauge.driver.advice import ADVICE, down_advice
from gpugauge.status import words
from gpugauge.status.health import RECOVERY, MemoryHealth, ailments, xid_advice
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.commands import parts

EVERY = [
    *ADVICE.values(),
    *(cause.advice for cause in CAUSES.values()),
    *(advice.format(index=3, pids=" (kill 7 8)") for _, advice in RECOVERY.values()),
    *(xid_advice(kind, 3) for kind in ("reset", "workflow", "node")),
    *(down_advice(reason) or "" for reason in ("gpu_is_lost", "not_enumerated", "removed", "hangs", "?")),
    *(a.advice for a in ailments(MemoryHealth("gpu_reset", True, True, 64, True, 1), 3)),
    *(words.RUN_ADVICE, words.HOOK_ADVICE, words.STALLED_ADVICE.format(7), words.IDLE_ADVICE),
]


def test_commands_end_where_the_sentence_goes_on() -> None:
    found = {part for advice in EVERY for part, command in parts(advice) if command}

    assert found == {
        "nvidia-smi --gpu-reset",
        "nvidia-smi --gpu-reset -i 3",
        "dmesg | grep Xid",
        "dmesg | grep -i nvrm",
        "modprobe nvidia",
        "py-spy dump --pid 7",
        "gpugauge forget UUID",
        "gpugauge run -- python train.py",
        "gpugauge release --for 10m",
        "kill 7 8",
    }


def test_nothing_of_an_advice_is_lost() -> None:
    assert [advice for advice in EVERY if "".join(part for part, _ in parts(advice)) != advice] == []
