import msgspec
import pytest

from agentflow import ModelChunk, Usage
from agentflow.chain.reply import Reply, checked, pieces
from agentflow.errors import ModelProtocolError
from agentflow.events import MAX_ANSWER_BYTES, MAX_DELTA_BYTES
from agentflow.models.base import CallRequest


def test_text_is_kept_as_it_comes():
    reply = Reply(began=0.0)
    assert [reply.add("one "), reply.add("two")] == ["one ", "two"]
    assert (reply.texts, reply.full) == (["one ", "two"], False)


def test_lone_surrogates_are_replaced():
    assert Reply(began=0.0).add("a\ud800b") == "a\ufffdb"


@pytest.mark.parametrize("character", ["a", '"', "\x00", "字", "😀"])
def test_text_over_the_bound_is_cut_by_its_encoded_size(character):
    reply = Reply(began=0.0)
    kept = reply.add(character * MAX_ANSWER_BYTES * 4)
    assert reply.full
    assert set(kept) == {character}
    assert MAX_ANSWER_BYTES - 10 < len(msgspec.json.encode(kept)) - 2 <= MAX_ANSWER_BYTES
    assert len(reply.add("more than is left")) < 10


def test_many_small_pieces_have_room_for_as_much_as_one_large():
    reply = Reply(began=0.0)
    for _ in range(MAX_ANSWER_BYTES // 4):
        reply.add("four")
    assert not reply.full
    assert reply.add("x") == ""
    assert reply.full


def test_the_last_that_is_given_counts():
    reply = Reply(began=0.0)
    usage = Usage(input_tokens=1)
    reply.take(ModelChunk(finish_reason="stop", usage=usage, provider_data={"a": 1}))
    reply.take(ModelChunk(calls=(CallRequest(name="a", arguments="{}"),)))
    reply.take(ModelChunk(calls=(CallRequest(name="b", arguments="{}"),), finish_reason="tool_calls"))
    assert [call.name for call in reply.calls] == ["a", "b"]
    assert (reply.finish_reason, reply.usage, reply.provider_data) == ("tool_calls", usage, {"a": 1})


def test_what_a_provider_does_not_count_is_estimated():
    reply = Reply(began=0.0)
    reply.add("12345678")
    assert reply.estimated_usage(7) == Usage(input_tokens=7, output_tokens=2, estimated=True)


def test_only_text_is_text():
    with pytest.raises(ModelProtocolError, match="a text of type bytes"):
        checked(b"x", "text")


@pytest.mark.parametrize("character", ["a", '"', "\x00", "字", "😀", "\u2028"])
def test_pieces_join_to_the_whole_and_fit_a_delta(character):
    whole = character * (MAX_ANSWER_BYTES // len(character.encode()))
    cut = pieces(whole)
    assert "".join(cut) == whole
    assert all(len(piece.encode()) <= MAX_DELTA_BYTES for piece in cut)


def test_a_small_text_is_one_piece():
    assert pieces("small") == ["small"]
