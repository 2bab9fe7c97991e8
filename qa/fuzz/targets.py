"""All fuzzing targets."""

from qa.fuzz.files import FILES
from qa.fuzz.live import LIVE
from qa.fuzz.texts import TEXTS

TARGETS = (*TEXTS, *FILES, *LIVE)
