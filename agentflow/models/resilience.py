"""When a failed model call is worth another attempt, and after how long.

Pure: it neither waits nor calls. Whoever does both also decides what is tried when this says no.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentflow.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Attempts at one model, and the waits between them in seconds.

    `attempts` counts the first one too. A wait is random between 0 and `base`, doubled for every further attempt up
    to `cap`, so that those who failed together do not come back together. A provider that says when to come back
    (Retry-After) is taken at its word, up to `retry_after_cap`.
    """

    attempts: int = 3
    base: float = 0.5
    cap: float = 8.0
    retry_after_cap: float = 30.0

    def decide(self, error: ModelError, attempt: int, *, random: Callable[[], float]) -> float | None:
        """The seconds to wait after `attempt` (from 1) failed with `error`; None for no further attempt here.

        None means: no error that passes by itself (a refused request, a reply that is no reply), attempts used up,
        or a provider that wants to be left alone for longer than the cap. `random` gives numbers in [0, 1).
        """
        if not error.retryable or attempt >= self.attempts:
            return None
        if error.retry_after:
            return error.retry_after if error.retry_after <= self.retry_after_cap else None
        return random() * min(self.cap, self.base * 2.0 ** (attempt - 1))
