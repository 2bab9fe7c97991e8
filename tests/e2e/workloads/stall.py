"""Trains for a while, then hangs in the loop."""

import threading

from tests.e2e.workloads.loop import begun, train

train(steps=300)
begun()
threading.Event().wait()
