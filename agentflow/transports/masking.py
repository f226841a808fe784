"""Frames of a WebSocket's client have to be masked (RFC 6455, 5.1), which aiohttp's reader does not ask for.

It looks at the heads of frames only. What is in them, and with which code a client is closed, is the reader's business.
"""

import asyncio

from aiohttp import web

_MASKED = 0x80
_SIZE = 0x7F
_SIZE_BYTES = {126: 2, 127: 8}  # what these sizes stand for: that the size follows, in so many bytes
_MASK_BYTES = 4

REFUSED = b"\x70\x80" + bytes(
    _MASK_BYTES
)  # a frame for which every reader closes with 1002: bits of no meaning are set


class MaskCheck:
    """Follows the frames in what one client sends. Only whole heads go on, so that no part of a wrong frame does."""

    def __init__(self) -> None:
        self._held = b""  # the beginning of a head
        self._left = 0  # bytes that are still to come before the next head
        self._over = False

    def passed(self, data: bytes) -> bytes:
        """What a reader gets of the next bytes: `REFUSED` instead of a frame without a mask, and nothing after it."""
        if self._over:
            return b""
        data, at = self._held + data, self._left
        while (head := data[at : at + 10])[1:]:
            if not head[1] & _MASKED:
                self._over = True
                return data[:at] + REFUSED
            size, begin = head[1] & _SIZE, 2 + _SIZE_BYTES.get(head[1] & _SIZE, 0)
            if len(head) < begin:
                break
            at += begin + _MASK_BYTES + (size if begin == 2 else int.from_bytes(head[2:begin]))
        self._held, self._left = data[at:], max(0, at - len(data))
        return data[:at]


class _Checked(asyncio.Protocol):
    """Stands between a connection and what reads it."""

    def __init__(self, reader: asyncio.Protocol) -> None:
        self._reader = reader
        self._check = MaskCheck()

    def data_received(self, data: bytes) -> None:
        if passed := self._check.passed(data):
            self._reader.data_received(passed)

    def eof_received(self) -> bool | None:
        return self._reader.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.connection_lost(exc)

    def pause_writing(self) -> None:
        self._reader.pause_writing()

    def resume_writing(self) -> None:
        self._reader.resume_writing()


def check_masks(request: web.Request) -> None:
    """From now on let frames of this request's client through only if they are masked; to be called before 101 is sent.

    One that is not closes the WebSocket with 1002.
    """
    if request.transport is not None:
        request.transport.set_protocol(_Checked(request.protocol))
