"""Whether a human is asked before a call, and what exactly they approve.

It asks nobody and waits for nothing; the chain does. Pure.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from agentflow.messages import clean_text
from agentflow.tools.effects import canonical
from agentflow.tools.failures import described
from agentflow.tools.registry import Tool

_MAX_REASON = 500  # characters


def arguments_hash(call_id: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical JSON of [call_id, tool, arguments].

    An approval is of this hash: it counts for no other call and no other arguments.
    """
    parts = ",".join(map(canonical, (call_id, tool, arguments)))
    return hashlib.sha256(f"[{parts}]".encode()).hexdigest()


def reason_to_ask(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Why a human must approve this call: None if nobody is asked, "" if there is nothing more to tell.

    `arguments` fit the tool's schema. A function that returns any text asks, also an empty one. One that raises, or
    returns something else than True, False, None or a text, asks too and the reason says so: what cannot be decided
    is not run unasked.
    """
    if isinstance(tool.approval, bool):
        return "" if tool.approval else None
    try:
        verdict: Any = tool.approval(copy.deepcopy(dict(arguments)))  # it may change them, not what is approved
    except BaseException as error:  # noqa: BLE001  whatever it raises, nobody has said that the call may run
        return f"asked because approval= raised {described(error)}"
    if isinstance(verdict, str):
        return clean_text(verdict.strip()[:_MAX_REASON])
    if verdict is None or isinstance(verdict, bool):
        return "" if verdict else None
    return f"asked because approval= returned {type(verdict).__name__}, expected True, False, None or a text"
