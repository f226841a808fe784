"""A provider that shows the key it was given: nothing of a run that fails on it may show it again."""

import logging
import traceback

import pytest

from agentflow import Agent, RunFailed, Settings
from agentflow.events import encode
from agentflow.models.openai import OpenAIModel
from agentflow.testing import FakeProvider, recorded, status

KEY = "sk-canary-0123456789abcdef"
REPLIES = {
    "refused": status(401, {"error": {"message": f"bad key {KEY}"}}),
    "broken": status(500, {"error": KEY}),
    "no chunk": recorded(f"data: {{broken {KEY}\n\n".encode()),
    "an error in the stream": recorded(f'data: {{"error":{{"message":"no {KEY}"}}}}\n\n'.encode()),
    "a page": recorded(KEY.encode(), content_type="text/html"),
    "a redirect": status(302, headers={"Location": f"http://h/{KEY}"}),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_no_event_error_log_or_traceback_of_a_run_shows_the_key(name, caplog):
    caplog.set_level(logging.DEBUG)
    async with FakeProvider(REPLIES[name], strict=False) as provider:
        model = OpenAIModel("m", base_url=provider.base_url, api_key=KEY)
        settings = Settings(model={"retries": {"attempts": 1}})
        async with Agent(model=model, settings=settings) as agent:
            chain = agent.stream("hello")
            seen = [encode(event).decode() async for event in chain]
            with pytest.raises(RunFailed) as caught:
                await chain.reply()
        await model.aclose()
    seen += [*traceback.format_exception(caught.value), caplog.text]
    assert KEY[8:] not in "\n".join(seen)
