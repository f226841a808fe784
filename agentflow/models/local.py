"""LocalModel: a real language model with no key and no network, run by llama.cpp in a child process.

It owns the child and asks it; what it is asked stands in `local_prompts`, how the file comes is in `local_files`, and
`local_server` is the child's program.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from agentflow.errors import ConfigError, ModelConnectionError, ModelTimeoutError
from agentflow.messages import Message, ToolSpec, Usage
from agentflow.models import local_files, local_prompts, local_server
from agentflow.models.base import ModelChunk, ModelRequest
from agentflow.models.failures import error_from_body
from agentflow.models.parsing import ChatStreamParser, parse_completion

logger = logging.getLogger(__name__)

PROVIDER = "local"
DEFAULT_NAME = "smollm2-135m-instruct"
CONTEXT_TOKENS = 4096
HISTORY_TOKENS = 1500  # of a chat that are sent: reading takes some 6 ms a token, and more does not help the model
ANSWER_TOKENS = 256  # of an answer, unless the request says otherwise: a small model may never end by itself
CALL_TOKENS = 256  # of a decision

_END_GRACE = 5.0  # seconds the child has to end by itself
_REAP = 1.0  # seconds a child whose connection broke has to be gone
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=300.0)  # calls wait for one another


@dataclass(frozen=True)
class _Child:
    process: "subprocess.Popen[str]"
    url: str
    key: str

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class LocalModel:
    """SmolLM2-135M-Instruct, or any GGUF file given as `model_path`.

    What a 135M model can do: call a tool for an English question that resembles the tool's description or examples
    (`benchmarks/local_model.py`: 14 of 20 right, and 10 of 15 that its prompts were not chosen with), repeat a short
    result in a sentence, chat in short fluent sentences. What it cannot: be right about facts, follow instructions
    closely, use two tools for one answer, tie a question to the turns before it when tools are offered, speak
    Chinese. It proves that everything around it works; it is not a product model.

    With tools, only the last question is looked at, and the call comes from a grammar at temperature 0. Once a tool has
    answered, no other is called: the reply is a sentence with the results. Calls run one after another, in one child
    process, which the first call starts and which ends with `aclose` or with this process, however that ends. A child
    that dies fails the call in hand with `ModelConnectionError`; the next call starts another. May be used from
    several event loops and threads.
    """

    provider = PROVIDER

    def __init__(self, model_path: str | Path | None = None) -> None:
        self._path = Path(model_path).expanduser() if model_path is not None else None
        self.name = DEFAULT_NAME if self._path is None else self._path.stem
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """One call: a tool call in one chunk, or an answer token by token. The first one fetches the model file.

        Closing the generator stops the generation. Raises `ConfigError` if the extra or the file is missing.
        """
        child = await asyncio.to_thread(self._started)
        headers = {"Authorization": f"Bearer {child.key}"}
        async with (
            _translated(child),
            aiohttp.ClientSession(child.url, headers=headers, timeout=_TIMEOUT) as session,
            aclosing(_reply(session, request)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    async def aclose(self) -> None:
        """End the child process and wait for it. A later call starts another."""
        await asyncio.to_thread(self._end)

    def describe(self) -> str:
        """One line for people: the file, its size, and what to expect of it. Starts and fetches nothing."""
        path = self._path or local_files.model_path()
        size = f"{path.stat().st_size / 1e6:.0f} MB" if path.is_file() else "not there yet"
        if self._path is not None:
            return f"{self.name}: {path}, {size}; a model of your own, with prompts made for very small models"
        return (
            f"{self.name}: {path}, {size}; a very small English model: makes simple tool calls and repeats their "
            "results; facts often wrong, Chinese unusable; it proves the plumbing and is not a product model"
        )

    def _started(self) -> _Child:
        """The running child. Callers at the same time wait for the same start."""
        with self._lock:
            if self._child is None or not self._child.alive:
                if self._child is not None:
                    logger.warning("the local model's process had ended with code %s", self._child.process.returncode)
                    _end(self._child.process)
                self._child = None
                self._child = _start(self._model_file())
            return self._child

    def _model_file(self) -> Path:
        if not local_files.engine_installed():
            raise ConfigError(local_files.INSTALL_HINT)
        if self._path is None:
            return local_files.ensure_model()
        if not self._path.is_file():
            raise ConfigError(f"the local model's file {str(self._path)!r} does not exist: give a GGUF file")
        return self._path

    def _end(self) -> None:
        with self._lock:
            if self._child is not None:
                _end(self._child.process)
                self._child = None


def _start(model: Path) -> _Child:
    job: dict[str, Any] = {"model": str(model), "context": CONTEXT_TOKENS, "key": secrets.token_hex(16)}
    # -P: the program's folder has modules whose names must not shadow others. A session of its own: Ctrl-C in a
    # terminal cancels a run and must not end the model.
    process = subprocess.Popen(  # noqa: S603  no shell, our own program
        [sys.executable, "-P", local_server.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return _Child(process, _handshake(process, job), job["key"])
    except BaseException:  # also Ctrl-C: the child must not outlive its start
        _end(process)
        raise


def _handshake(process: "subprocess.Popen[str]", job: dict[str, Any]) -> str:
    """Tell the child its job; its address, once the model is loaded."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101  pipes were asked for
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
    except (OSError, ValueError) as error:
        raise ModelConnectionError(
            f"the process of the local model ended before {job['model']!r} was loaded; is the file a GGUF model?",
            provider=PROVIDER,
        ) from error
    if "error" in answer:
        raise ConfigError(f"the local model cannot load {job['model']!r}: {answer['error']}")
    return str(answer["url"])


def _end(process: "subprocess.Popen[str]") -> None:
    """End the child: it leaves when its standard input ends, and is killed if it does not."""
    try:
        process.communicate(timeout=_END_GRACE)  # closes its input, and at last its output
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


async def _reply(session: aiohttp.ClientSession, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
    question, results = _last_turn(request.messages)
    spent = Usage()
    if results:
        prompt = local_prompts.result_prompt(question, results)
    else:
        if request.tools:
            decision = await _decide(session, question, request.tools)
            if decision.calls:
                yield decision
                return
            spent = decision.usage or spent
        prompt = local_prompts.chat_prompt(request.messages, HISTORY_TOKENS)
    body = {
        "messages": prompt,
        "temperature": request.temperature or 0.0,
        "max_tokens": request.max_tokens or ANSWER_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    parser = ChatStreamParser(PROVIDER)
    async with _post(session, body) as response:
        async for block in response.content.iter_any():
            for chunk in parser.feed(block):
                yield chunk
    for chunk in parser.finish():
        if chunk.usage is not None:
            chunk.usage += spent
        yield chunk


def _last_turn(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The last question, and what tools have answered since."""
    results: list[str] = []
    for message in reversed(messages):
        if message.role == "user":
            return message.text, results[::-1]
        if message.role == "tool":
            results.append(message.text)
    return "", results[::-1]


async def _decide(session: aiohttp.ClientSession, question: str, tools: Sequence[ToolSpec]) -> ModelChunk:
    """Let the model choose: a chunk with its call, or one without calls; with usage either way."""
    body = {
        "messages": local_prompts.decision_prompt(question, tools),
        "grammar": local_prompts.decision_grammar(tools),
        "temperature": 0.0,
        "max_tokens": CALL_TOKENS,
    }
    async with _post(session, body) as response:
        chunks = parse_completion(await response.read(), PROVIDER)
    last = chunks[-1]
    call = local_prompts.read_decision("".join(chunk.text for chunk in chunks))
    if call is not None:
        last.calls = (call,)
        last.finish_reason = "length" if last.finish_reason == "length" else "tool_calls"
    return last


@asynccontextmanager
async def _post(session: aiohttp.ClientSession, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
    async with session.post("/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise error_from_body(
                response.status,
                response.content_type,
                await response.read(),
                provider=PROVIDER,
                headers=response.headers,
            )
        yield response


@asynccontextmanager
async def _translated(child: _Child) -> AsyncIterator[None]:
    """Errors of the connection to `child` as ours."""
    try:
        yield
    except TimeoutError as error:
        raise ModelTimeoutError(
            f"the local model gave no sign for {_TIMEOUT.sock_read:.0f} s", provider=PROVIDER
        ) from error
    except aiohttp.ClientError as error:
        # Almost always the child has died: it is reaped now, so that the next call sees it and starts another.
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(child.process.wait, _REAP)
        code = child.process.returncode
        state = "is still running" if code is None else f"ended with code {code}; the next call starts another"
        raise ModelConnectionError(
            f"the connection to the local model broke; its process {state}", provider=PROVIDER
        ) from error
