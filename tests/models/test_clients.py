"""The clients of one agent: which are made, how long they are kept, and that all of them are closed."""

import pytest

from agentflow.errors import ConfigError
from agentflow.models import clients
from agentflow.models.base import FunctionModel, ModelChunk
from agentflow.models.clients import ModelClients, close
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import Settings

URL = "http://127.0.0.1:9/v1"


def local(model=None, **options):
    """The clients of an agent whose model strings mean a server that nobody asks anything."""
    return ModelClients(model, **{"base_url": URL, "api_key": "k"} | options)


def unread():
    raise AssertionError("the settings were read")


def names(models):
    return [model.name for model in models]


async def reply(request):
    yield ModelChunk(text="hello")


class Closing(ScriptedModel):
    """A model that has something to close, and perhaps fails to."""

    def __init__(self, error=None):
        super().__init__()
        self.closed = 0
        self.error = error

    async def aclose(self):
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_a_model_that_was_given_as_an_object_is_used_as_it_is_and_needs_no_settings():
    model = ScriptedModel()
    given = local(model)
    assert given.resolve(None, unread) == (model,)
    assert given.name == ""


def test_a_bare_function_becomes_a_model():
    (model,) = local(reply).resolve(None, unread)
    assert isinstance(model, FunctionModel)


async def test_a_string_is_made_a_client_once_and_the_settings_are_read_for_no_other_reason():
    own = local("openai/m1")
    assert own.name == "openai/m1"
    first = own.resolve(None, Settings)
    assert own.resolve(None, unread) is first
    assert own.resolve("openai/m1", unread) is first
    assert names(first) == ["openai/m1"]  # the server's own name, since the address is given
    await own.aclose()


async def test_a_request_may_name_another_model_than_the_agents_own():
    given = local(ScriptedModel())
    (asked,) = given.resolve("openai/m2", Settings)
    assert asked.name == "openai/m2"
    assert given.resolve(None, unread) != (asked,)
    await given.aclose()


async def test_no_model_at_all_means_the_configured_default():
    configured = Settings(
        model={"default": "mine"}, providers={"mine": {"base_url": URL, "api_key": "k", "default_model": "m3"}}
    )
    agent = ModelClients(None, base_url=None, api_key=None)
    assert (agent.name, names(agent.resolve(None, lambda: configured))) == ("", ["m3"])
    await agent.aclose()


def test_a_string_that_means_nothing_is_told_each_time_and_nothing_is_kept_of_it():
    agent = ModelClients(None, base_url=None, api_key=None)
    for _ in range(2):
        with pytest.raises(ConfigError, match="unknown provider 'nobody'"):
            agent.resolve("nobody/m", Settings)


async def test_the_clients_not_asked_for_the_longest_are_superfluous_but_those_in_use_are_not(monkeypatch):
    monkeypatch.setattr(clients, "_MAX_MODELS", 3)
    agent = local()
    made = {name: agent.resolve(name, Settings) for name in ("m1", "m2", "m3", "m4", "m5")}
    agent.resolve("m2", unread)  # asked for again
    gone = agent.superfluous(made["m1"])
    assert gone == list(made["m3"])
    assert agent.superfluous(()) == list(made["m1"])
    assert agent.superfluous(()) == []
    assert agent.resolve("m2", unread) is made["m2"]
    again = agent.resolve("m3", Settings)
    assert again != made["m3"]
    for model in (*gone, *made["m1"]):
        await close(model)
    await agent.aclose()


async def test_what_was_made_here_is_closed_and_what_was_given_only_if_that_is_asked_for():
    model = Closing()
    agent = local(model)
    await agent.aclose()
    assert model.closed == 0
    await agent.aclose(given=True)
    assert model.closed == 1


async def test_after_closing_clients_are_made_anew():
    agent = local("openai/m1")
    first = agent.resolve(None, Settings)
    await agent.aclose()
    second = agent.resolve(None, Settings)
    assert second is not first
    await agent.aclose()


async def test_one_that_cannot_be_closed_keeps_no_other_open():
    model = Closing()
    agent = local(model)
    agent._made = {"a": (Closing(), Closing(RuntimeError("it is stuck"))), "b": (Closing(),)}
    made = [one for chain in agent._made.values() for one in chain]
    with pytest.raises(RuntimeError, match="it is stuck"):
        await agent.aclose(given=True)
    assert [one.closed for one in (*made, model)] == [1, 1, 1, 1]


async def test_a_model_that_has_nothing_to_close_is_left_alone():
    await close(ScriptedModel())
