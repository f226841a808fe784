import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing

import aiohttp
import pytest

from agentflow.errors import ConfigError, ModelConnectionError, ModelStatusError
from agentflow.messages import Message, ToolCall, ToolSpec
from agentflow.models import local
from agentflow.models.base import ChatModel, ModelRequest
from agentflow.models.local import LocalModel
from agentflow.models.local_files import engine_installed

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.skipif(not engine_installed(), reason='needs the extra "local"'),
]

CALCULATOR = ToolSpec(
    name="calculator",
    description="Work out an arithmetic expression exactly.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    examples=({"expression": "2+3*4"}, {"expression": "sqrt(2)*(1-0.19)"}),
)
CURRENT_TIME = ToolSpec(
    name="current_time",
    description="Tell the current date and time.",
    parameters={"type": "object", "properties": {"timezone": {"type": "string", "default": "UTC"}}},
    examples=({"timezone": "UTC"}, {"timezone": "Europe/Berlin"}),
)
TOOLS = (CALCULATOR, CURRENT_TIME)


def asked(*texts, tools=(), **options):
    """A request with `texts` by user and assistant in turn."""
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[number % 2], content=text) for number, text in enumerate(texts))
    return ModelRequest(messages=messages, tools=tools, **options)


def answered(question, *results, tools=TOOLS):
    """A request after a round in which tools gave `results`."""
    calls = tuple(
        ToolCall(call_id=str(number), name="calculator", raw_arguments="{}") for number in range(len(results))
    )
    messages = [Message(role="user", content=question), Message(role="assistant", tool_calls=calls)]
    messages += [Message(role="tool", call_id=str(number), content=result) for number, result in enumerate(results)]
    return ModelRequest(messages=tuple(messages), tools=tools)


async def ask(model, request):
    async with aclosing(model.stream(request)) as stream:
        return [chunk async for chunk in stream]


def text_of(chunks):
    return "".join(chunk.text for chunk in chunks)


def call_in(chunks):
    [call] = [call for chunk in chunks for call in chunk.calls]
    return call.name, json.loads(call.arguments)


@pytest.fixture(scope="session")
def model():
    shared = LocalModel()
    asyncio.run(ask(shared, asked("Hello!", max_tokens=1)))  # the start, in a loop that is gone afterwards
    yield shared
    asyncio.run(shared.aclose())


@pytest.fixture
def children(monkeypatch):
    """All children started in this test."""
    started = []
    start = local._start

    def spy(path):
        started.append(start(path))
        return started[-1]

    monkeypatch.setattr(local, "_start", spy)
    return started


def test_it_is_a_chat_model_that_says_who_it_is():
    model = LocalModel()

    assert isinstance(model, ChatModel)
    assert (model.provider, model.name) == ("local", "smollm2-135m-instruct")


async def test_an_answer_streams_token_by_token(model):
    chunks = await ask(model, asked("What is the capital of France?"))

    assert "Paris" in text_of(chunks)
    assert sum(bool(chunk.text) for chunk in chunks) >= 4
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage.input_tokens > chunks[-1].usage.output_tokens > 0
    assert not chunks[-1].usage.estimated


async def test_a_sum_is_a_call_of_the_calculator_every_time(model):
    for _ in range(2):
        chunks = await ask(model, asked("What is 2+3*4?", tools=TOOLS))
        name, arguments = call_in(chunks)

        assert name == "calculator"
        assert eval(arguments["expression"], {}) == 14
        assert chunks[-1].finish_reason == "tool_calls"
        assert text_of(chunks) == ""


async def test_the_time_is_a_call_of_the_clock(model):
    name, arguments = call_in(await ask(model, asked("What time is it in Tokyo?", tools=TOOLS)))

    assert (name, arguments) == ("current_time", {"timezone": "Asia/Tokyo"})


async def test_after_a_result_comes_a_sentence_with_it_and_no_further_call(model):
    chunks = await ask(model, answered("What is 2+3*4?", "[success]\n14"))

    assert "14" in text_of(chunks)
    assert not any(chunk.calls for chunk in chunks)
    assert sum(bool(chunk.text) for chunk in chunks) >= 4


async def test_after_a_failure_the_answer_says_what_failed(model):
    chunks = await ask(model, answered("What is 5/0?", "[error: failed]\ndivision by zero"))

    assert "division by zero" in text_of(chunks)


async def test_a_question_for_no_tool_is_answered_in_words(model):
    chunks = await ask(model, asked("What is the colour of the sky?", tools=TOOLS))
    alone = await ask(model, asked("What is the colour of the sky?"))

    assert "blue" in text_of(chunks)
    assert chunks[-1].usage.input_tokens > alone[-1].usage.input_tokens, "the decision is counted too"


async def test_a_schema_with_words_the_engine_does_not_know_still_binds(model):
    strange = {"type": "string", "pattern": "^(?=o)on$", "format": "switch", "not": {"const": "off"}}
    schema = {"type": "object", "properties": {"state": strange}, "required": ["state"], "dependentSchemas": {}}
    lamp = ToolSpec(name="lamp", description="Switch the lamp to a state.", parameters=schema)

    name, arguments = call_in(await ask(model, asked("Switch the lamp to on.", tools=(lamp,))))

    assert name == "lamp"
    assert isinstance(arguments["state"], str)


async def test_a_history_longer_than_the_context_is_cut(model):
    turns = ["Tell me more about the sea. " * 50, "The sea is deep and full of fish. " * 50] * 10

    assert text_of(await ask(model, asked(*turns, "What is the capital of France?")))


async def test_a_message_longer_than_the_context_is_refused_by_name(model):
    with pytest.raises(ModelStatusError, match="exceeds the available context size"):
        await ask(model, asked("word " * 10_000))


async def test_the_limit_of_tokens_is_told_as_such(model):
    chunks = await ask(model, asked("Tell me a long story.", max_tokens=3))

    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].usage.output_tokens == 3


async def test_calls_at_the_same_time_share_one_child(children):
    model = LocalModel()
    replies = await asyncio.gather(*(ask(model, asked("Hello!", max_tokens=5)) for _ in range(3)))
    await model.aclose()

    assert all(map(text_of, replies))
    assert len(children) == 1
    assert children[0].process.returncode == 0


async def test_leaving_a_stream_early_frees_the_model_for_the_next_call(model):
    async with aclosing(model.stream(asked("Tell me a long story.", max_tokens=4000))) as stream:
        await anext(stream)

    assert text_of(await ask(model, asked("Hello!")))


def test_it_works_in_one_loop_after_another(model):
    for _ in range(2):
        assert text_of(asyncio.run(ask(model, asked("Hello!", max_tokens=2))))


async def test_a_child_that_dies_fails_the_call_in_hand_and_the_next_call_starts_another(children):
    model = LocalModel()
    stream = model.stream(asked("Tell me a long story.", max_tokens=4000))
    await anext(stream)
    children[0].process.kill()

    with pytest.raises(ModelConnectionError, match="ended with code -9; the next call starts another"):
        async for _ in stream:
            pass
    assert text_of(await ask(model, asked("Hello!", max_tokens=2)))
    await model.aclose()

    assert len(children) == 2


async def test_a_child_that_died_between_calls_is_replaced(children):
    model = LocalModel()
    for _ in range(2):
        assert text_of(await ask(model, asked("Hello!", max_tokens=2)))
        children[-1].process.kill()
        children[-1].process.wait()
    await model.aclose()

    assert len(children) == 2


async def test_the_child_answers_nobody_without_its_key(model):
    child = model._started()

    async with (
        aiohttp.ClientSession(child.url) as session,
        session.post("/v1/chat/completions", json={"messages": []}) as response,
    ):
        assert response.status == 401
    assert child.url.startswith("http://127.0.0.1:")
    assert child.key not in " ".join(child.process.args)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to watch a process that is not a child")
def test_the_child_ends_with_its_parent_even_if_that_is_killed():
    program = (
        "import time\nfrom agentflow.models.local import LocalModel\n"
        "child = LocalModel()._started()\nprint(child.process.pid, flush=True)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], 20)
    os.close(child)

    assert ended


async def test_without_the_engine_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(ConfigError, match=r'pip install "agentflow-rx\[local\]"'):
        await ask(LocalModel(), asked("Hello!"))


async def test_a_file_of_ones_own_must_exist(tmp_path):
    model = LocalModel(tmp_path / "mine.gguf")

    assert model.name == "mine"
    with pytest.raises(ConfigError, match=r"mine\.gguf' does not exist"):
        await ask(model, asked("Hello!"))


async def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "mine.gguf"
    path.write_text("no model")

    with pytest.raises(ConfigError, match=r"cannot load .*mine\.gguf"):
        await ask(LocalModel(path), asked("Hello!"))


async def test_a_program_that_ends_before_it_answers_is_an_error(tmp_path, monkeypatch):
    broken = tmp_path / "broken.py"
    broken.write_text("")
    monkeypatch.setattr(local.local_server, "__file__", str(broken))
    path = tmp_path / "mine.gguf"
    path.touch()

    with pytest.raises(ModelConnectionError, match=r"ended before .* was loaded"):
        await ask(LocalModel(path), asked("Hello!"))


async def test_closing_a_model_that_was_never_used_is_nothing():
    await LocalModel().aclose()


def test_it_describes_itself_in_one_line_without_starting(children, tmp_path):
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x" * 2_000_000)

    assert "proves the plumbing and is not a product model" in LocalModel().describe()
    assert f"{path}, 2 MB" in LocalModel(path).describe()
    assert "not there yet" in LocalModel(tmp_path / "other.gguf").describe()
    assert not children
