import json
import subprocess
import sys

import pytest

from agentflow.models import local_server

JOB = {"model": "/models/m.gguf", "key": "secret", "context": 4096}

# Stands for the engine: prints where answers go, and gives back what it was told as its address.
ENGINE = """
import ctypes, json, os
print("a word of the native library", flush=True)
class Values:
    pass
class CommonParams:
    def __init__(self):
        self.model, self.cpuparams, self.cpuparams_batch = Values(), Values(), Values()
class Server:
    def __init__(self, params):
        if params.model.path == "broken":
            raise RuntimeError("Failed to init server")
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        self.listening_address = json.dumps([
            params.model.path, params.api_keys, params.n_ctx, params.cpuparams.n_threads,
            params.cpuparams_batch.n_threads, getenv(b"OMP_WAIT_POLICY").decode(),
        ])
"""


@pytest.fixture
def serve(tmp_path):
    (tmp_path / "xllamacpp.py").write_text(ENGINE)

    def run(job):
        return subprocess.run(
            [sys.executable, "-P", local_server.__file__],
            input=json.dumps(job) + "\n",
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


def test_the_engine_gets_the_job_one_thread_and_a_passive_wait(serve):
    done = serve(JOB)

    told = json.loads(json.loads(done.stdout)["url"])
    assert told == ["/models/m.gguf", ["secret"], 4096, 1, 1, "passive"]


def test_what_the_engine_prints_does_not_stand_among_the_answers(serve):
    done = serve(JOB)

    assert len(done.stdout.splitlines()) == 1
    assert "a word of the native library" in done.stderr


def test_it_ends_when_its_standard_input_ends(serve):
    assert serve(JOB).returncode == 0


def test_a_file_that_cannot_be_loaded_is_an_answer(serve):
    done = serve(JOB | {"model": "broken"})

    assert json.loads(done.stdout) == {"error": "RuntimeError: Failed to init server"}
