"""All fuzzing targets."""

from tests.fuzz.files import FILES
from tests.fuzz.live import LIVE
from tests.fuzz.texts import TEXTS

TARGETS = (*TEXTS, *FILES, *LIVE)
