"""Tool calls of `/chat/completions` replies: gives every fragment to its call.

It neither checks a name nor reads arguments: a call leaves as it came, also if it was cut.
"""

import json
from typing import Any

import msgspec

from agentflow.errors import ModelProtocolError
from agentflow.messages import clean_text
from agentflow.models.base import CallRequest

MAX_ARGUMENTS = 1024 * 1024  # characters of one call's arguments
MAX_CALLS = 128


class FunctionPart(msgspec.Struct, gc=False):
    """What a fragment says of the function; its arguments are the JSON that came, a string with most servers."""

    name: Any = None
    arguments: msgspec.Raw = msgspec.Raw()

    @property
    def text(self) -> str:
        """The arguments as text: what the string says, "" for null, else the JSON itself, untouched.

        Raises `ModelProtocolError` for a string that cannot be read.
        """
        try:
            raw = bytes(self.arguments).decode("utf-8", "surrogatepass")
            if raw[:1] == '"':
                return str(json.loads(raw))
        except ValueError as error:
            raise ModelProtocolError(f"the arguments of a call cannot be read: {error}") from error
        return "" if raw == "null" else raw


class CallPart(msgspec.Struct, gc=False):
    """A fragment of a call, as it is on the wire."""

    index: Any = None
    id: Any = None
    function: FunctionPart | None = None


class _OpenCall:
    """A call whose arguments are still coming; fragments are joined once, at the end."""

    __slots__ = ("fragments", "id", "name", "size")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.fragments: list[str] = []
        self.size = 0

    def copy(self) -> "_OpenCall":
        twin = _OpenCall()
        twin.id, twin.name, twin.size = self.id, self.name, self.size
        twin.fragments = self.fragments.copy()
        return twin

    def add(self, function: FunctionPart) -> None:
        if not self.name and isinstance(function.name, str):
            self.name = clean_text(function.name)
        arguments = function.text
        if not arguments:
            return
        self.fragments.append(arguments)
        self.size += len(arguments)
        if self.size > MAX_ARGUMENTS:
            raise ModelProtocolError(f"the arguments of {self.name!r} are longer than {MAX_ARGUMENTS} characters")

    @property
    def arguments(self) -> str:
        return clean_text("".join(self.fragments))

    def is_whole(self) -> bool:
        """Whether the arguments so far are a JSON object."""
        text = self.arguments
        return text.endswith("}") and is_object(text)


class CallAssembly:
    """Gives each fragment to its call. Calls keep the order in which they appeared."""

    def __init__(self) -> None:
        self.calls: list[_OpenCall] = []
        self._at_index: dict[int, _OpenCall] = {}
        self._legacy: _OpenCall | None = None

    def copy(self) -> "CallAssembly":
        twin = CallAssembly()
        twins = {id(call): call.copy() for call in self.calls}
        twin.calls = list(twins.values())
        twin._at_index = {index: twins[id(call)] for index, call in self._at_index.items()}
        twin._legacy = None if self._legacy is None else self._legacy.copy()
        return twin

    def add(self, part: CallPart) -> None:
        """Add a fragment of a streamed call."""
        index = part.index if type(part.index) is int else None
        name = part.function.name if part.function is not None else None
        call = self._find(index, part.id, name) or self._open()
        if index is not None:
            self._at_index[index] = call
        self._fill(call, part)

    def add_whole(self, part: CallPart) -> None:
        """Add a call of a reply that was not streamed: each part is one call."""
        self._fill(self._open(), part)

    def add_legacy(self, function: FunctionPart) -> None:
        """Add to the one call of the old `function_call` form, which has no id."""
        if self._legacy is None and not function.name and not function.text:
            return  # some servers send an empty one beside the real calls
        self._legacy = self._legacy or _OpenCall()
        self._legacy.add(function)

    def requests(self) -> tuple[CallRequest, ...]:
        """All calls, whole as far as the reply is."""
        calls = self.calls or ([self._legacy] if self._legacy is not None else [])
        return tuple(CallRequest(name=call.name, arguments=call.arguments, id=call.id or None) for call in calls)

    def _find(self, index: int | None, id: Any, name: Any) -> _OpenCall | None:  # noqa: A002  the wire's name
        """The open call that a fragment belongs to, None if it begins a new one."""
        if index is not None:
            call = self._at_index.get(index)
            # Some servers say index 0 for every call: another id tells that this is another call.
            return None if call is not None and id and call.id and call.id != id else call
        if not self.calls:
            return None
        last = self.calls[-1]
        if id:
            known = next((call for call in self.calls if call.id == id), None)
            # An id that comes after the name still names the last call.
            return known or (last if not last.id and (not name or name == last.name) else None)
        if name and last.name and (name != last.name or last.is_whole()):
            return None
        return last

    def _open(self) -> _OpenCall:
        if len(self.calls) >= MAX_CALLS:
            raise ModelProtocolError(f"the reply asks for more than {MAX_CALLS} tool calls")
        self.calls.append(_OpenCall())
        return self.calls[-1]

    def _fill(self, call: _OpenCall, part: CallPart) -> None:
        if not call.id and isinstance(part.id, str):
            call.id = clean_text(part.id)
        if part.function is not None:
            call.add(part.function)


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object, as arguments have to be."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
