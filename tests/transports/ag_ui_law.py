"""What AG-UI 1.0 says of the order and the shape of a stream, for what is told in tests."""

from ag_ui.core.events import Event
from pydantic import TypeAdapter

EVENT = TypeAdapter(Event)


def assert_lawful(told):
    """The stream is whole: every event has its shape and its place, and all that was opened is closed at its end."""
    law = _Law()
    for one in told:
        _assert_shape(one)
        law.take(one)
    assert law.ended, "the stream has no end"


def _assert_shape(one):
    event = EVENT.validate_python(one)
    assert not event.model_extra, f"{one['type']} has no {event.model_extra}"
    assert None not in one.values(), f"absent members are left out: {one}"


class _Law:
    def __init__(self):
        self.started = self.ended = False
        self.open = {"TEXT_MESSAGE": {}, "TOOL_CALL": {}, "REASONING_MESSAGE": {}, "REASONING": {}}
        self.owners = {}
        self.subagents = []
        self.ever = set()

    def take(self, one):
        kind = one["type"]
        assert not self.ended, f"{kind} after the end"
        assert self.started != (kind == "RUN_STARTED") or kind == "RUN_ERROR", f"{kind} at the wrong place"
        name = one.get("subagentRunId")
        if kind == "RUN_STARTED":
            self.started = True
        elif kind == "RUN_ERROR":
            self.ended = True
        elif kind == "RUN_FINISHED":
            assert not any(self.open.values()), f"the end leaves {self.open} open"
            assert not self.subagents, f"the end leaves {self.subagents} open"
            asked = [interrupt["id"] for interrupt in one["outcome"].get("interrupts", [])]
            assert len(set(asked)) == len(asked)
            assert bool(asked) == (one["outcome"]["type"] == "interrupt")
            self.ended = True
        elif kind.startswith("SUBAGENT"):
            self._subagent(kind, name, one)
        else:
            assert name is None or name in self.ever, f"{kind} of a subagent that has not begun"
            self._part(kind, one)

    def _subagent(self, kind, name, one):
        if kind == "SUBAGENT_STARTED":
            assert name not in self.ever, "a subagent begins once"
            assert one.get("parentSubagentRunId") in (None, *self.subagents)
            self.ever.add(name)
            self.subagents.append(name)
        else:
            self.subagents.remove(name)

    def _part(self, kind, one):
        group, _, step = kind.rpartition("_")
        if group not in self.open:
            return
        name = one.get("messageId", one.get("toolCallId"))
        if step == "START":
            assert name not in self.open[group], f"{kind} of {name}, which is open"
            assert self.owners.setdefault((group, name), one.get("subagentRunId")) == one.get("subagentRunId")
            self.open[group][name] = one.get("subagentRunId")
        elif step in ("CONTENT", "ARGS", "END"):
            assert name in self.open[group], f"{kind} of {name}, which is not open"
            assert one.get("subagentRunId") == self.open[group][name]
            if step == "END":
                del self.open[group][name]


class Client:
    """What a client has made of the streams of a thread: its messages and its state."""

    def __init__(self):
        self.messages = []
        self.state = None
        self.outcome = None

    def take(self, told):
        for one in told:
            handle = getattr(self, "_" + one["type"].lower(), None)
            if handle is not None:
                handle(one)

    def texts(self):
        """What stands on the screen, by role."""
        return [(message["role"], message.get("content", "")) for message in self.messages]

    def _message(self, name, **fields):
        for message in self.messages:
            if message["id"] == name:
                return message
        self.messages.append({"id": name, **fields})
        return self.messages[-1]

    def _text_message_start(self, one):
        message = self._message(one["messageId"], role="assistant")
        message.setdefault("content", "")
        if "subagentRunId" in one:
            message["subagentRunId"] = one["subagentRunId"]

    def _text_message_content(self, one):
        self._message(one["messageId"])["content"] += one["delta"]

    def _tool_call_start(self, one):
        message = self._message(one["parentMessageId"], role="assistant")
        call = {"id": one["toolCallId"], "name": one["toolCallName"], "arguments": ""}
        message.setdefault("toolCalls", []).append(call)

    def _tool_call_args(self, one):
        for message in self.messages:
            for call in message.get("toolCalls", ()):
                if call["id"] == one["toolCallId"]:
                    call["arguments"] += one["delta"]

    def _tool_call_result(self, one):
        self._message(one["messageId"], role="tool", toolCallId=one["toolCallId"], content=one["content"])

    def _messages_snapshot(self, one):
        self.messages = [dict(message) for message in one["messages"]]

    def _state_snapshot(self, one):
        self.state = one["snapshot"]

    def _state_delta(self, one):
        (change,) = one["delta"]
        assert change["path"] == "/agentflow/state"
        assert change["op"] == "replace"
        self.state["agentflow"]["state"] = change["value"]

    def _run_finished(self, one):
        self.outcome = one["outcome"]
