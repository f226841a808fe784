"""The parsers against replies recorded from real providers; skipped where the recordings are not at hand."""

import collections
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ModelError, ModelRateLimitError, ModelStatusError, ModelTruncatedError
from agentflow.models.base import ModelChunk
from agentflow.models.failures import error_from_body
from agentflow.models.ollama_parsing import OllamaStreamParser
from agentflow.models.parsing import ChatStreamParser, parse_completion

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the corpus of recorded replies is not beside this repository"
)


class Recording:
    def __init__(self, name: str, path: Path, entry: dict[str, Any]) -> None:
        self.name = name
        self.body = path.read_bytes()
        self.entry = entry
        self.kind = entry["kind"]
        self.expected = entry["expected"]

    @property
    def failing(self) -> bool:
        return self.kind.startswith("error")


def recordings(*kinds: str) -> Iterator[Recording]:
    for path in sorted(CORPUS.glob("*.expected.json")):
        entry = json.loads(path.read_text("utf-8"))
        if entry["kind"] in kinds:
            yield Recording(entry["name"], CORPUS / entry["file"], entry)
    for path in sorted(CORPUS.glob("conv-*/conversation.json")):
        conversation = json.loads(path.read_text("utf-8"))
        for turn in conversation["turns"]:
            if turn["kind"] in kinds:
                yield Recording(f"{conversation['name']}/{turn['file']}", path.parent / turn["file"], turn)


STREAMS = list(recordings("chat-stream", "error-in-stream"))
NATIVE = list(recordings("ollama-ndjson", "ollama-json"))


def cuts(recording: Recording) -> Iterator[tuple[str, list[bytes]]]:
    body = recording.body
    yield "whole", [body]
    yield "1 byte", [body[at : at + 1] for at in range(len(body))]
    yield "7 bytes", [body[at : at + 7] for at in range(0, len(body), 7)]
    lengths = recording.entry.get("transport_chunks")
    if lengths:
        pieces, at = [], 0
        for length in lengths:
            pieces.append(body[at : at + length])
            at += length
        yield "recorded", [*pieces, body[at:]]


def assembled(chunks: list[ModelChunk]) -> dict[str, Any]:
    last = chunks[-1]
    return {
        "content": "".join(chunk.text for chunk in chunks),
        "reasoning": "".join(chunk.reasoning for chunk in chunks) or None,
        "refusal": "".join(chunk.refusal for chunk in chunks) or None,
        "tool_calls": [(call.id, call.name, call.arguments) for call in last.calls],
        "finish_reason": last.finish_reason,
        "usage": None if last.usage is None else (last.usage.input_tokens, last.usage.output_tokens),
    }


def wanted(expected: dict[str, Any]) -> dict[str, Any]:
    calls = [(call["id"], call["name"], call["arguments"]) for call in expected["tool_calls"]]
    legacy = expected.get("function_call")
    if legacy and not calls:
        calls = [(None, legacy["name"], legacy["arguments"])]
    usage = expected["usage"]
    return {
        "content": expected["content"] or "",
        "reasoning": expected["reasoning"] or None,
        "refusal": expected["refusal"] or None,
        "tool_calls": calls,
        "finish_reason": expected["finish_reason"],
        "usage": None if usage is None else (usage["input_tokens"], usage["output_tokens"]),
    }


def read(
    pieces: list[bytes], kind: type[ChatStreamParser | OllamaStreamParser] = ChatStreamParser
) -> tuple[list[ModelChunk], ModelError | None]:
    parser = kind("recorded")
    chunks = [chunk for piece in pieces for chunk in parser.feed(piece)]
    try:
        return [*chunks, *parser.finish()], None
    except ModelError as error:
        return chunks, error


@pytest.mark.parametrize("recording", STREAMS, ids=lambda recording: recording.name)
def test_a_recorded_stream_assembles_however_it_is_cut(recording: Recording) -> None:
    expected = wanted(recording.expected)
    for _, pieces in cuts(recording):
        chunks, error = read(pieces)
        if not recording.failing:
            assert error is None
            assert assembled(chunks) == expected
            continue
        assert isinstance(error, ModelStatusError)
        assert recording.expected["error_message"][:400] in str(error)
        assert "".join(chunk.text for chunk in chunks) == expected["content"]
        assert "".join(chunk.reasoning for chunk in chunks) == expected["reasoning"]


@pytest.mark.parametrize("recording", list(recordings("chat-json")), ids=lambda recording: recording.name)
def test_a_recorded_completion_assembles(recording: Recording) -> None:
    assert assembled(parse_completion(recording.body)) == wanted(recording.expected)


@pytest.mark.parametrize("recording", list(recordings("error-json")), ids=lambda recording: recording.name)
def test_a_recorded_error_body_becomes_our_error(recording: Recording) -> None:
    status, message = recording.entry["http_status"], recording.expected["error_message"]
    if status == 200:
        with pytest.raises(ModelStatusError) as caught:
            parse_completion(recording.body)
        error: ModelError = caught.value
    else:
        error = error_from_body(
            status, recording.entry["content_type"], recording.body, provider="recorded", headers={}
        )
        assert error.status == status
        assert isinstance(error, ModelRateLimitError) == (status == 429)
    assert message[:400] in str(error)


@pytest.mark.parametrize("recording", NATIVE, ids=lambda recording: recording.name)
def test_a_recorded_reply_of_ollama_assembles_however_it_is_cut(recording: Recording) -> None:
    expected = wanted(recording.expected)
    calls = [(id, name, json.loads(arguments)) for id, name, arguments in expected.pop("tool_calls")]  # noqa: A001
    for _, pieces in cuts(recording):
        chunks, error = read(pieces, OllamaStreamParser)
        assert error is None
        found = assembled(chunks)
        assert [(id, name, json.loads(text)) for id, name, text in found.pop("tool_calls")] == calls  # noqa: A001
        assert found == expected


@pytest.mark.parametrize("recording", NATIVE, ids=lambda recording: recording.name)
def test_a_reply_of_ollama_cut_at_any_byte_is_truncated(recording: Recording) -> None:
    body, text = recording.body.rstrip(), recording.expected["content"] or ""
    parser, said = OllamaStreamParser("recorded"), ""
    for at in range(len(body)):
        with pytest.raises(ModelTruncatedError):
            parser.copy().finish()
        said += "".join(chunk.text for chunk in parser.feed(body[at : at + 1]))
        assert text.startswith(said)
    assert parser.copy().finish()[-1].finish_reason == recording.expected["finish_reason"]


def test_the_whole_corpus_is_covered(capsys: pytest.CaptureFixture[str]) -> None:
    index = json.loads((CORPUS / "index.json").read_text("utf-8"))["recordings"]
    tested = [*recordings("chat-json", "error-json"), *STREAMS, *NATIVE]
    seen = {recording.name.partition("/")[0] for recording in tested}
    kinds = collections.Counter(entry["kind"] for entry in index)
    covered = collections.Counter(entry["kind"] for entry in index if entry["name"] in seen)

    with capsys.disabled():
        rows = (f"  {kind:16} {covered[kind]:3} of {count:3}" for kind, count in sorted(kinds.items()))
        print("", "recorded replies", *rows, f"  {'all':16} {len(seen):3} of {len(index):3}", sep="\n")  # noqa: T201  for who reads the run

    assert seen == {entry["name"] for entry in index}


@pytest.mark.parametrize("recording", STREAMS, ids=lambda recording: recording.name)
def test_a_stream_cut_at_any_byte_is_complete_or_truncated(recording: Recording) -> None:
    body, text = recording.body, recording.expected["content"] or ""
    parser, said, was_complete = ChatStreamParser("recorded"), "", False
    for at in range(len(body) + 1):
        twin = parser.copy()
        try:
            chunks = twin.finish()
        except ModelTruncatedError:
            assert not was_complete, "what was complete stays complete"
            assert not twin.complete
        except ModelError:
            assert recording.failing
        else:
            assert twin.complete
            assert chunks[-1].finish_reason or b"[DONE]" in body[:at]
            assert text.startswith(said + "".join(chunk.text for chunk in chunks))
        was_complete = was_complete or parser.complete
        said += "".join(chunk.text for chunk in parser.feed(body[at : at + 1]))
        assert text.startswith(said)


def test_a_random_cut_of_a_stream_changes_nothing() -> None:
    pick = random.Random(20261130)
    for recording in STREAMS:
        body = recording.body
        points = sorted(pick.sample(range(len(body)), min(40, len(body))))
        pieces = [body[start:end] for start, end in zip([0, *points], [*points, len(body)], strict=True)]
        whole, failed = read([body])
        chunks, error = read(pieces)
        assert type(error) is type(failed)
        assert sum(chunk.count for chunk in chunks) == sum(chunk.count for chunk in whole)
        assert "".join(chunk.text for chunk in chunks) == "".join(chunk.text for chunk in whole)
