"""A simulated NVML library and /proc, made from a scenario: which cards there are, what runs on them, what goes wrong.

`scenario` is for the parent and needs pydantic; everything else is standard library only and runs in the worker.
"""


class ScenarioError(Exception):
    """A scenario cannot be used; the message is one sentence that names file, line, key and what was expected."""
