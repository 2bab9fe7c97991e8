"""A training that hangs in its loop after a while."""

import threading

from tests.e2e.workloads.loop import begun, train

train(steps=300)
begun()
threading.Event().wait()
