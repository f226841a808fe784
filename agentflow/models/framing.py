"""Frames of streamed replies: cuts a body, fed in any pieces, into the data of server-sent events or into lines.

It does not know what the data mean. Events are read after the event-stream part of the HTML standard; `id` and
`retry` are read over, because a model's stream is never resumed.
"""

MAX_EVENT_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class ErrorPayload(bytes):
    """The data of an event named `error`."""


class EventSplitter:
    """Bytes in, the data of whole events out, the same whatever the pieces.

    Work is linear in the bytes: an unfinished line is kept in pieces and joined when its end comes. Once one event
    is over `MAX_EVENT_BYTES`, `overflow` is true, and nothing more comes out. (An unfinished event is measured as it
    came, field names included; a whole one by its data.)
    """

    def __init__(self) -> None:
        self.overflow = False
        self._start = b""  # at most three bytes, until it is known whether the body begins with a byte order mark
        self._started = False
        self._after_cr = False
        self._line: list[bytes] = []  # the unfinished last line, in pieces
        self._data: list[bytes] = []  # the data lines of the unfinished event
        self._named_error = False
        self._held = 0  # bytes of the unfinished event

    def copy(self) -> "EventSplitter":
        """An independent splitter at the same point of the same stream."""
        twin = object.__new__(EventSplitter)
        twin.__dict__.update(self.__dict__)
        twin._line = self._line.copy()
        twin._data = self._data.copy()
        return twin

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in `data`."""
        if not self._started:
            data = self._without_bom(data)
        if b"\r" in data or self._after_cr:
            data = self._with_newlines_only(data)
        if self.overflow or not data:
            return []
        size = len(data)
        if b"\n" not in data:
            self._line.append(data)
            self._held += size
            self.overflow = self._held > MAX_EVENT_BYTES
            return []
        if self._line:
            self._line.append(data)
            data = b"".join(self._line)
        lines = data.split(b"\n")
        last = lines.pop()
        self._line = [last] if last else []
        events = self._events(lines)
        if events or not self._data:  # then all that is held came with this call
            self._held = sum(map(len, self._data)) + len(last)
        else:
            self._held += size
        self.overflow = self.overflow or self._held > MAX_EVENT_BYTES
        return events

    def rest(self) -> bytes | None:
        """The data of an event that the end of the body left without its blank line, None if there is none."""
        if self.overflow:
            return None
        if not self._started:
            self._line.append(self._start)
        if self._line:
            self._field(b"".join(self._line))
        return self._event() if self._data else None

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif line:
                self._field(line)
            elif data:
                events.append(data.pop() if len(data) == 1 and not self._named_error else self._event())
                if len(events[-1]) > MAX_EVENT_BYTES:
                    self.overflow = True
                    events.pop()
                    break
            else:
                self._named_error = False
        return events

    def _event(self) -> bytes:
        joined = b"\n".join(self._data)
        self._data.clear()
        if self._named_error:
            self._named_error = False
            return ErrorPayload(joined)
        return joined

    def _field(self, line: bytes) -> None:
        """Read one line that is not blank. A comment has an empty name, an unknown name says nothing."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._named_error = value == b"error"

    def _without_bom(self, data: bytes) -> bytes:
        data = self._start + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._started = True
        return data.removeprefix(_BOM)

    def _with_newlines_only(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr and data[:1] == b"\n":  # the second half of a CR LF
            data = data[1:]
            self._after_cr = False
            if not data:
                return data
        self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class LineSplitter:
    """Bytes in, whole lines without their ends out, the same whatever the pieces: the frames of NDJSON.

    Blank lines are read over. Once a line is over `MAX_EVENT_BYTES`, `overflow` is true, and nothing more comes out.
    """

    def __init__(self) -> None:
        self.overflow = False
        self._line: list[bytes] = []  # the unfinished last line, in pieces
        self._held = 0  # bytes of it

    def copy(self) -> "LineSplitter":
        """An independent splitter at the same point of the same stream."""
        twin = LineSplitter()
        twin.overflow, twin._line, twin._held = self.overflow, self._line.copy(), self._held
        return twin

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`."""
        if self.overflow or not data:
            return []
        first, *rest = data.split(b"\n")
        self._line.append(first)
        self._held += len(first)
        lines: list[bytes] = []
        for following in rest:
            if self._held > MAX_EVENT_BYTES:
                break
            lines.append(b"".join(self._line).strip())
            self._line, self._held = [following], len(following)
        self.overflow = self._held > MAX_EVENT_BYTES
        return [line for line in lines if line]

    def rest(self) -> bytes | None:
        """The line that the end of the body left without its end, None if there is none."""
        line = b"" if self.overflow else b"".join(self._line).strip()
        return line or None
