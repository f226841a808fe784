"""Finish reasons: the words of many servers for one thing become one word, and a reply that was cut stays cut.

What a reason means for the calls of a reply is up to the chain.
"""

import re
from typing import Any

from agentflow.messages import clean_text

_BETWEEN_WORDS = re.compile(r"[\W_]+")
_CUT = {
    "length": ("length", "maxlength", "modellength", "maxtokens", "maxoutputtokens", "maxcompletiontokens"),
    "content_filter": ("contentfilter", "contentfiltered", "safety", "recitation", "blocklist", "prohibitedcontent"),
}
_KNOWN = {word.replace("_", ""): word for word in ("stop", "eos", "error", "end_turn")}
_KNOWN |= {word.replace("_", ""): word for word in ("tool_calls", "tool_use", "function_call")}
_KNOWN |= {spelling: word for word, spellings in _CUT.items() for spelling in spellings}


def later_reason(seen: str | None, given: Any) -> str | None:
    """The finish reason of a reply that had `seen` so far and now says `given`, which may be anything.

    Known reasons get the one spelling that the rest of agentflow knows; others stay as they came. The last one that
    says something counts, but for this: after one that says the reply was cut only "error" does, and nothing after it.
    """
    if not given or not isinstance(given, str):
        return seen
    reason = _KNOWN.get(_BETWEEN_WORDS.sub("", given).lower()) or clean_text(given)
    return seen if seen == "error" or (seen in _CUT and reason != "error") else reason
