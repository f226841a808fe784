"""Whether a failed call is tried again, and after how long.

It neither waits nor calls, and does not judge a failure (`failures` does). Pure.
"""

import random
from collections.abc import Callable
from typing import Final

from agentflow.tools.execution import ToolOutcome
from agentflow.tools.registry import Tool

BASE: Final = 0.5  # seconds: the first wait is random between 0 and this, each further one up to twice as long
CAP: Final = 8.0  # seconds that a wait of our own may take
MAX_RETRY_AFTER: Final = 30.0  # seconds: a service that wants to be left alone for longer is


def wait_before_retry(
    tool: Tool, outcome: ToolOutcome, attempt: int, *, chance: Callable[[], float] = random.random
) -> float | None:
    """The seconds to wait before `attempt` + 1, after `attempt` (from 1) ended with `outcome`; None for no more.

    A rate limit says that nothing was done, so the call is tried again, unless it has given output that cannot be
    taken back. After any other failure that may pass only a tool that is idempotent or has an idempotency key is,
    and one whose body goes on only if it is idempotent. What the service asks for (Retry-After) is waited for in
    full; a random part comes on top, so that those who failed together do not come back together. `chance` gives
    numbers in [0, 1).
    """
    asked = outcome.retry_after or 0.0
    if attempt > tool.retries or asked > MAX_RETRY_AFTER or not _may_be_repeated(tool, outcome):
        return None
    return asked + chance() * min(CAP, BASE * 2.0 ** (attempt - 1))


def _may_be_repeated(tool: Tool, outcome: ToolOutcome) -> bool:
    if outcome.cause == "" or (outcome.abandoned and not tool.idempotent):
        return False
    if tool.idempotent or tool.idempotency_key is not None:
        return True
    return outcome.cause == "rate_limit" and not outcome.emitted
