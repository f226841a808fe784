import subprocess
import sys

import pytest

from agentflow.cli.output import complain, print_lines, written_file
from agentflow.errors import ConfigError


def python(code, **options):
    """A process of its own: what is tried here is what becomes of a process's standard streams."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)


def test_lines_cannot_drive_a_terminal(capsys):
    print_lines(["a\x1b[2Jb", "two\nlines"])
    assert capsys.readouterr().out == "a[2Jb\ntwo\nlines\n"


def test_a_complaint_is_one_line(capsys):
    complain("first\nsecond\x07")
    assert capsys.readouterr().err == "agentflow: first second\n"


def test_a_complaint_that_nobody_can_hear_is_no_error():
    code = "import os; from agentflow.cli.output import complain; os.close(2); complain('x'); print('goes on')"
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_what_is_written_alone_has_standard_output_for_itself():
    code = (
        "import subprocess; from agentflow.cli.output import stdout_alone; write = stdout_alone(); print('printed');"
        "subprocess.run(['echo', 'of a process']); write(b'line')"
    )
    done = python(code)
    assert done.stdout == "line\n"
    assert sorted(done.stderr.splitlines()) == ["of a process", "printed"]


def test_a_file_is_written_anew(tmp_path):
    path = tmp_path / "file"
    path.write_text("something longer", "utf-8")
    with written_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'.*no/file' cannot be written"), written_file(tmp_path / "no" / "file"):
        pass
