import pytest

from agentflow import Agent, tool
from agentflow.errors import RequestError
from agentflow.messages import ImagePart, TextPart
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, call
from agentflow.transports.conversation import linked_picture, picture, said, session_of, waiting
from agentflow.transports.refusals import Refused
from tests.transports.served import Gate, served


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def test_a_conversation_has_the_session_of_its_name():
    assert session_of("x", "a-b_1") == "a-b_1"
    long = session_of("x", "thread/1?")
    assert (long, long.startswith("chat-")) == (session_of("x", "thread/1?"), True)
    assert len({long, session_of("y", "thread/1?"), session_of("x", "thread/2?")}) == 3


def test_a_message_may_have_pictures():
    link = ImagePart(url="https://example.org/a.png")
    message = said((TextPart("look"), link), session_id="s", metadata={"a": 1})
    request = message.request("ann")
    assert (request.input, request.session_id, request.user_id) == ((TextPart("look"), link), "s", "ann")
    assert (request.text, request.metadata) == ("look", {"a": 1})
    assert said((link,)).request(None).input == (link,)
    assert said("words").request(None).input == "words"


@pytest.mark.parametrize("content", ["", (), "x" * (256 * 1024 + 1)])
def test_a_message_that_says_nothing_or_too_much_is_refused(content):
    with pytest.raises(Refused):
        said(content)


@pytest.mark.parametrize("url", ["", "x", "ftp://a/b", "data:image/png,x", "data:;base64,AAAA", "data:a/b;base64,?"])
def test_what_is_no_picture_is_refused(url):
    with pytest.raises(RequestError):
        linked_picture(url)


def test_a_picture_is_its_data_or_its_address():
    assert linked_picture("http://example.org/a") == ImagePart(url="http://example.org/a")
    assert linked_picture("data:image/gif;base64,AAAA") == picture("AAAA", "image/gif")
    assert picture("AAAA", "image/gif") == ImagePart(data=b"\0\0\0", media_type="image/gif")


async def test_only_a_run_that_waits_for_people_is_waiting():
    agent = Agent(name="a", model=ScriptedModel([call("pay", id="p", amount=1)], "Paid.", "Hello."), tools=[pay])
    gate = Agent(name="b", model=Gate(), store=agent.store)
    async with served(agent, gate) as here:
        assert await waiting(here.server, SessionKey("s")) is None
        chain = agent.start("hello", session_id="s")
        await chain.reply()
        view, events = await waiting(here.server, SessionKey("s"))
        assert (view.run_id, [asked.call_id for asked in view.pending]) == (chain.run_id, ["p"])
        assert (events[0].seq, events[-1].seq) == (1, view.seq)
        assert await waiting(here.server, SessionKey("s", "ann")) is None
        chain.approve("p")
        await chain
        assert await waiting(here.server, SessionKey("s")) is None
        other = gate.start("hello", session_id="t")
        assert await waiting(here.server, SessionKey("t")) is None
        other.cancel()
        await other
