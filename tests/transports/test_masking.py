import random
import struct

import pytest

from agentflow.transports.masking import REFUSED, MaskCheck
from tests.transports.served import served, settled
from tests.transports.sockets import CLOSE, PING, TEXT, connected, frame, handshake, raw

FRAMES = [
    frame(TEXT, b"{}"),
    frame(PING),
    frame(TEXT, b"x" * 125),
    b"\x81" + bytes([0x80 | 126]) + struct.pack("!H", 300) + b"mask" + b"y" * 300,
    frame(TEXT, b"z" * 70_000),
    frame(TEXT, b"", last=False) + frame(0, b"end"),
]  # fmt: skip


def cut(data, seed):
    """The data in pieces, most of them small."""
    chance = random.Random(seed)
    while data:
        size = chance.choice((1, 1, 2, 3, 7, 300, 65_536))
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("seed", range(20))
def test_masked_frames_pass_as_they_are_however_they_are_cut(seed):
    check, data = MaskCheck(), b"".join(random.Random(seed).choices(FRAMES, k=8))
    assert b"".join(map(check.passed, cut(data, seed))) == data


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [0, 2, 126, 70_000])
def test_of_a_frame_without_a_mask_nothing_passes_nor_of_what_follows(seed, size):
    check, good = MaskCheck(), b"".join(random.Random(seed).choices(FRAMES, k=3))
    data = good + frame(TEXT, b"x" * size, mask=b"") + good
    assert b"".join(map(check.passed, cut(data, seed))) == good + REFUSED


def test_no_part_of_a_head_passes_before_the_whole_is_known():
    check = MaskCheck()
    head = b"\x81\xff" + (5).to_bytes(8)
    assert [check.passed(bytes([byte])) for byte in head] == [b""] * 9 + [head]


@pytest.mark.parametrize(
    "first", [b"", frame(TEXT, b'{"type": "cancel", "run_id": "r"}'), frame(TEXT, b"{", last=False)]
)
async def test_a_client_that_does_not_mask_is_closed(first, caplog):
    async with served() as here, raw(here) as client:
        await client.send(first + frame(TEXT, b'{"type": "run", "input": "hello"}', mask=b""))
        code, reason = await client.closed()
        assert (code, bool(reason)) == (1002, True)
        client.writer.write(frame(CLOSE, struct.pack("!H", code)))
        await client.gone()
        await settled()
        assert len(here.server.connections) == 0
        assert len(here.server.presence) == 0  # what it asked for was not begun
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_request_that_is_not_upgraded_leaves_its_connection_to_the_next():
    async with served() as here:
        refused = handshake(f"127.0.0.1:{here.port}", Sec_WebSocket_Key="short")
        after = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nConnection: close\r\n\r\n".encode()
        answer = await here.raw(refused + after)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.endswith(b'{"status":"ok"}')
        async with connected(here) as client:
            await client.ended(await client.accepted("run", input="hello"))
