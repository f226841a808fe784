import msgspec
import pytest

from agentflow.errors import ModelProtocolError
from agentflow.models.base import ModelChunk
from agentflow.models.texts import MAX_TEXT, Texts, decoded_leniently


def test_neighbours_of_one_channel_are_one_chunk_that_counts():
    texts = Texts()
    for channel, text in (("text", "a"), ("text", "b"), ("reasoning", "x"), ("text", "c")):
        texts.add(channel, text)
    assert texts.take() == [ModelChunk(text="ab", count=2), ModelChunk(reasoning="x"), ModelChunk(text="c")]
    assert texts.take() == []


def test_half_a_character_waits_for_the_other_half_and_counts_with_it():
    texts = Texts()
    texts.halves = True
    texts.add("text", "a\ud83d")
    assert texts.take() == [ModelChunk(text="a", count=0)]
    assert texts.take() == []
    texts.add("text", "\ude00")
    assert texts.take() == [ModelChunk(text="😀", count=2)]


def test_a_half_that_stays_alone_is_replaced_at_the_end():
    texts = Texts()
    texts.halves = True
    texts.add("text", "\ud83d")
    assert texts.take() == []
    assert texts.copy().take(last=True) == texts.take(last=True) == [ModelChunk(text="\ufffd")]


def test_all_channels_together_are_bounded():
    texts = Texts()
    texts.add("text", "a" * (MAX_TEXT - 1))
    texts.add("reasoning", "b")
    with pytest.raises(ModelProtocolError, match=f"longer than {MAX_TEXT} characters"):
        texts.add("refusal", "c")


def test_what_the_strict_decoder_refuses_can_be_read():
    class Line(msgspec.Struct):
        text: str
        score: float = 0.0

    assert decoded_leniently(b'{"text": "\\ud83d", "score": NaN}', Line).text == "\ud83d"
    with pytest.raises(ValueError, match="a key is given twice"):
        decoded_leniently(b'{"text": "", "score": NaN, "text": "x"}', Line)
    for payload in (b"\xff", b"{", b"[]"):
        with pytest.raises(ValueError):  # of either decoder
            decoded_leniently(payload, Line)
