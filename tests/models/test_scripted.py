import asyncio

import pytest

from agentflow.errors import ModelConnectionError, ModelError
from agentflow.messages import Message, ToolCall, Usage
from agentflow.models.base import CallRequest, ChatModel, ModelChunk, ModelRequest
from agentflow.models.scripted import ScriptedModel, call

ASK = ModelRequest(messages=(Message(role="user", content="hello"),))


async def play(model, request=ASK):
    return [chunk async for chunk in model.stream(request)]


async def test_text_is_streamed_in_words_and_ends():
    *words, last = await play(ScriptedModel("four  plus\nten"))
    assert [chunk.text for chunk in words] == ["four  ", "plus\n", "ten"]
    assert last == ModelChunk(
        finish_reason="stop", usage=Usage(input_tokens=6, output_tokens=4, estimated=True), count=0
    )


async def test_turns_are_played_in_order_and_then_there_is_an_error():
    model = ScriptedModel("one", "")
    assert (await play(model))[0].text == "one"
    assert len(await play(model)) == 1
    with pytest.raises(ModelError, match="2 turns and this is call 3"):
        await play(model)
    assert model.requests == [ASK] * 3


async def test_calls_come_whole_with_the_end():
    last = (await play(ScriptedModel(["I look.", call("find", id="c1", name="x", n=1), call("now")])))[-1]
    assert last.calls == (
        CallRequest(id="c1", name="find", arguments='{"name": "x", "n": 1}'),
        CallRequest(name="now", arguments="{}"),
    )
    assert last.finish_reason == "tool_calls"


async def test_chunks_are_given_as_they_are_and_what_they_say_is_kept():
    usage = Usage(input_tokens=1, output_tokens=2)
    first = ModelChunk(reasoning="hm", count=3)
    second = ModelChunk(text="cut", finish_reason="length", usage=usage)
    assert await play(ScriptedModel([first, second])) == [
        first,
        second,
        ModelChunk(finish_reason="length", usage=usage, count=0),
    ]


async def test_an_exception_is_raised_at_its_place():
    chunks = ScriptedModel(["a", ModelConnectionError("gone"), "b"]).stream(ASK)
    assert (await anext(chunks)).text == "a"
    with pytest.raises(ModelConnectionError):
        await anext(chunks)


async def test_an_unpaired_history_is_refused_and_uses_up_no_turn():
    model = ScriptedModel("one")
    open_call = Message(role="assistant", tool_calls=(ToolCall(call_id="c1", name="f", raw_arguments="{}"),))
    with pytest.raises(ModelError, match="not paired"):
        await play(model, ModelRequest(messages=(open_call,)))
    assert (await play(model))[0].text == "one"


@pytest.mark.virtual_time
async def test_a_delay_passes_before_each_chunk():
    loop = asyncio.get_running_loop()
    started = loop.time()
    await play(ScriptedModel("one two", delay=2.0))
    assert loop.time() - started == pytest.approx(6.0)


def test_it_is_a_chat_model():
    assert isinstance(ScriptedModel(), ChatModel)
