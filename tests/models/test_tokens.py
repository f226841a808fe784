import importlib.util
import sys

import pytest

from agentflow.errors import ConfigError
from agentflow.messages import Message, ToolSpec
from agentflow.models.base import ModelRequest, estimate_request_tokens
from agentflow.models.tokens import bpe_tokenizer

needs_encodings = pytest.mark.skipif(
    importlib.util.find_spec("bpe_openai") is None, reason="the extra 'tokens' is not installed"
)


@needs_encodings
def test_tokens_are_counted_without_a_network():
    count = bpe_tokenizer("openai/gpt-5-mini")
    assert count("") == 0
    assert count("hello world") == 2
    assert count("<|endoftext|>") > 1, "it is text here, and no special token"


@needs_encodings
@pytest.mark.parametrize("model", ["", "gpt-5-mini", "openrouter/openai/gpt-4o", "anthropic/claude-sonnet-4"])
def test_unknown_and_newer_models_have_the_newest_encoding(model):
    text = "Die Übertragungsgeschwindigkeit, 速度"
    assert bpe_tokenizer(model)(text) == bpe_tokenizer("gpt-4o")(text) < bpe_tokenizer("gpt-4-turbo")(text)


@needs_encodings
def test_the_estimate_of_a_request_takes_any_tokenizer():
    tool = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
    request = ModelRequest(messages=(Message(role="user", content="hello world"),), tools=(tool,))
    assert estimate_request_tokens(request, len) == 4 + len("hello world") + len('addAdds.{"type":"object"}')
    assert 0 < estimate_request_tokens(request, bpe_tokenizer()) < estimate_request_tokens(request, len)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentflow-rx\[tokens\]'"):
        bpe_tokenizer()
