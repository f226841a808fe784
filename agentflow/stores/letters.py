"""The letters of an inbox as stores keep them: their bytes, and how many have room.

It keeps none itself.
"""

from collections.abc import Sequence

import msgspec

from agentflow.errors import LimitError
from agentflow.stores.base import MAX_LETTER_BYTES, MAX_LETTERS, Letter

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Letter).decode


def has_room(letter: Letter, sizes: Sequence[int]) -> bool:
    """Whether the letter has room beside those of these sizes in bytes."""
    if letter.verb == "cancel":
        return True
    return len(sizes) < MAX_LETTERS and sum(sizes) + len(encode(letter)) <= MAX_LETTER_BYTES


def no_room(run_id: str) -> LimitError:
    """What a store says when the inbox is full."""
    return LimitError(
        f"the inbox of run {run_id!r} is full: {MAX_LETTERS} letters or {MAX_LETTER_BYTES} bytes wait to be seen to; "
        "send it again when the process that works on the run has read some"
    )
