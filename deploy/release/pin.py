"""Writes the digest of each image into the files that name one by a tag: `make pin`. Needs skopeo, and the registries.

A tag can be moved to another image, a digest cannot. The tag stays, for people; the digest is what counts.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# `image: NAME:TAG[@sha256:…]`; images without a tag are built here.
_IMAGE = re.compile(
    r"^(?P<begin>\s*image:\s*)(?P<name>[^\s@:]+(?::\d+/[^\s@:]+)?:[\w.-]+)(?:@sha256:\w+)?\s*$", re.MULTILINE
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class PinError(Exception):
    """A digest cannot be looked up; the message names the image and the reason."""


def digest(image: str) -> str:
    """Return the digest of NAME:TAG in its registry, of all platforms. Raises PinError."""
    command = ["skopeo", "inspect", "--no-tags", "--format={{.Digest}}", f"docker://{image}"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise PinError("skopeo is not installed: apt-get install skopeo") from None
    found = done.stdout.strip()
    if done.returncode or not _DIGEST.fullmatch(found):
        raise PinError(f"{image}: skopeo finds no digest: {done.stderr.strip() or found}")
    return found


def pinned(text: str, find: Callable[[str], str] = digest) -> str:
    """Return the text of a file with the present digest of each of its images. Raises PinError."""
    return _IMAGE.sub(lambda match: f"{match['begin']}{match['name']}@{find(match['name'])}", text)


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[_ROOT / "deploy" / "compose.yaml"])
    try:
        for path in parser.parse_args().files:
            path.write_text(pinned(path.read_text()))
    except (OSError, PinError) as error:
        sys.stderr.write(f"pin: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
