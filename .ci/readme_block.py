"""Print the n-th fenced `sh` block of README.md, so that what users are told to run is what is tested."""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block(text: str, number: int) -> str:
    """The `number`-th block, from 1. Ends the program with a message if there are fewer."""
    blocks = _BLOCK.findall(text)
    if len(blocks) < number:
        sys.exit(f"README.md has {len(blocks)} fenced sh blocks, block {number} is wanted")
    return blocks[number - 1]


if __name__ == "__main__":
    sys.stdout.write(block(README.read_text(encoding="utf-8"), int(sys.argv[1])))
