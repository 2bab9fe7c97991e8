"""Users who each hand the hook's socket a descriptor whose close blocks: lingering.py SOCKET FIRST_UID USERS. They keep
the other ends until they are killed.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from gpugauge.wire import messages as wire
from qa.hostile.hook import lingering


def hand_over(path: str, user: int) -> None:
    os.setresuid(user, user, user)
    kept: list[int | socket.socket] = []
    descriptor = lingering(kept)
    hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hook.connect(path)
    socket.send_fds(hook, [wire.encode(wire.Hello(f"{user:032}", 0))], [descriptor])
    os.close(descriptor)
    time.sleep(120)


if __name__ == "__main__":
    for number in range(int(sys.argv[3])):
        if os.fork() == 0:
            hand_over(sys.argv[1], int(sys.argv[2]) + number)
    print("begun", flush=True)
    time.sleep(120)
