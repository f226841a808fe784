"""The program in the local model's child process: llama.cpp's own server on a loopback port.

It is run by its path and imports nothing of agentflow, so that it starts fast; `local` is its only caller. It serves
until its standard input ends, which happens when the parent closes it or dies in any way.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    """Read the job (one line of JSON), start the server, answer one line, serve until standard input ends.

    The answer is `{"url": ...}` or `{"error": ...}`.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the native library prints must not stand between the answers
    job = json.loads(sys.stdin.readline())
    try:
        server = _start(job)
    except Exception as error:  # noqa: BLE001  the parent turns it into its own error
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _say(answers, {"url": server.listening_address})
    sys.stdin.read()
    os._exit(0)  # at once: nothing here is worth waiting for a generation that nobody reads


def _start(job: dict[str, Any]) -> Any:
    # One thread, and waiting without spinning: on busy cores llama.cpp's spinning threads starve each other.
    os.putenv("OMP_WAIT_POLICY", "passive")  # before the library is loaded, which reads it once
    import xllamacpp  # an optional dependency

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.api_keys = [job["key"]]
    params.n_ctx = job["context"]
    params.n_parallel = 1
    params.cache_ram_mib = 64  # keeps the heads of the few prompts that take turns
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_slots = False
    return xllamacpp.Server(params)


def _say(answers: Any, answer: dict[str, str]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
