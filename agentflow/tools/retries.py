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
    taken back, or its body goes on. After any other failure that may pass only an idempotent tool is: the failed
    attempt may have had its effect. A key alone does not help, since the index knows only of calls that have ended;
    a tool that hands its key on to a service which honours it is idempotent, and can say so. What the service asks for
    (Retry-After) is waited for in full; a random part comes on top, so that those who failed together do not come back
    together. `chance` gives numbers in [0, 1).
    """
    asked = outcome.retry_after or 0.0
    if attempt > tool.retries or asked > MAX_RETRY_AFTER or not _may_be_repeated(tool, outcome):
        return None
    return asked + chance() * min(CAP, BASE * 2.0 ** (attempt - 1))


def _may_be_repeated(tool: Tool, outcome: ToolOutcome) -> bool:
    if tool.idempotent:
        return outcome.cause != ""
    return outcome.cause == "rate_limit" and not outcome.emitted and not outcome.abandoned
