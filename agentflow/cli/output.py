"""What goes to standard output and standard error, and to files that a person names.

It does not know what is written; how a run looks is in `screen`.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agentflow.cli.screen import cleaned, one_line
from agentflow.errors import ConfigError


def print_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output, without the control characters by which a text could drive a terminal."""
    sys.stdout.writelines(f"{cleaned(line)}\n" for line in lines)


def complain(line: str) -> None:
    """Write one line to standard error, if somebody is there to read it."""
    try:
        sys.stderr.write(f"agentflow: {one_line(line)}\n")
        sys.stderr.flush()
    except OSError:  # there is nobody to tell; the exit code has to do
        discard(2)


def discard(number: int) -> None:
    """Drop what is to be written yet to a standard stream that fails; the program's end would try it once more."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


def stdout_alone() -> Callable[[bytes], None]:
    """Writes lines to standard output, and lets nothing else get there: tools print, and so do their processes."""
    stdout = os.dup(1)  # unbuffered, so that a line that could not be written is not tried again at exit
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def write(line: bytes) -> None:
        left = memoryview(line + b"\n")
        while left:
            left = left[os.write(stdout, left) :]

    return write


@contextmanager
def written_file(path: Path) -> Iterator[BinaryIO]:
    """The file, to be written anew. Raises `ConfigError` if that cannot be done."""
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error}") from error
