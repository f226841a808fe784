"""The work of one chain of a run: its tasks, and their one way to the writer.

What is worked on is in `model_calls` and `tool_calls`; here is what both need.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Literal, TypeAlias

from agentflow.chain.gates import Step
from agentflow.chain.reply import pieces
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.writer import Ending, Writer
from agentflow.errors import AgentflowError, ModelError, StoreError
from agentflow.events import AgentEvent, Channel, DeltaEvent, RunError, WarningEvent
from agentflow.messages import clean_text
from agentflow.models.base import ChatModel
from agentflow.operators import MicroBatch
from agentflow.state import ChainState, Command, FailChild, RunState
from agentflow.streams import TaskOwner, is_cancelled

logger = logging.getLogger(__name__)

BatchKey: TypeAlias = tuple[int, int, Channel]  # iteration, attempt, channel
Job: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_MAX_MESSAGE = 2000  # characters of an error that an event carries


class Work:
    """Tasks of a chain end with it; what they still bring then is dropped."""

    def __init__(self, runtime: Runtime, info: RunInfo, writer: Writer, tasks: TaskOwner) -> None:
        """`tasks` owns those of the whole run."""
        self.runtime = runtime
        self.info = info
        self.writer = writer
        self._owner = tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False
        self._said = 0  # what the writer had been posted when it got the last text
        self._batch: MicroBatch[BatchKey] = MicroBatch(
            self._post_delta, clock=runtime.clock, window=runtime.window, max_bytes=runtime.max_batch_bytes
        )

    @property
    def over(self) -> bool:
        """Whether the chain, or its run, has ended or is about to, so that nothing it still brings counts."""
        return self.closed or self.writer.ending

    def chain(self, state: RunState) -> ChainState:
        """What `state` holds of the chain."""
        return state.chain(self.info.chain_id)

    def header(self, iteration: int | None = None) -> dict[str, Any]:
        """The common fields of an event of the chain; of its current round if none is named."""
        current = self.writer.state.chain(self.info.chain_id).iteration if iteration is None else iteration
        return self.info.header() | {"iteration": current}

    def post(self, item: AgentEvent | Command | Ending) -> None:
        """Hand something to the writer, behind the text that came before it."""
        self._batch.close()
        if not self.closed:
            self.writer.post(item)

    def say(self, key: BatchKey, text: str, count: int) -> None:
        """Text of a model, to be joined with what comes shortly after it."""
        if self.closed:
            return
        self._batch.push(key, text, count)

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """Note something in the run's log."""
        self.post(WarningEvent(code=code, message=message, data=data, **self.header()))

    def names(self, model: ChatModel) -> tuple[str, str]:
        """The names of the model's provider and of the model itself."""
        provider, name = getattr(model, "provider", "custom"), getattr(model, "name", self.info.model_name)
        return clean_text(str(provider)), clean_text(str(name))

    def step(self, kind: Literal["model", "tool"], **fields: Any) -> Step:
        """What a gate is told of a call; `fields` are further ones of `Step`."""
        return Step(kind=kind, agent=self.info.path[-1], user_id=self.info.session.user_id, warn=self.warn, **fields)

    def fail(self, error: AgentflowError) -> None:
        """End the chain with `error`: the run, or the call of the agent that this chain is."""
        if self.info.parent_chain_id is None:
            self.fail_run(error)
        else:
            self.post(FailChild(self.info.chain_id, kind=error.kind, message=text_of(error)))

    def fail_run(self, error: AgentflowError) -> None:
        """End the run with `error`."""
        self.post(Ending(error=RunError(kind=error.kind, message=text_of(error), retryable=error.retryable)))

    @property
    def behind(self) -> bool:
        """Whether the log has not accepted yet what was said last, or has too much else to accept.

        Who brings text waits then until it is `ready`: so a crash never costs a reply more than one window of its text,
        however slow the log is. What is not read meanwhile waits at its source.
        """
        writer = self.writer
        return self._said > writer.settled or writer.crowded

    async def ready(self) -> None:
        """Let others run, and wait until the log has kept up with what was posted."""
        await asyncio.sleep(0)
        if not self.behind:
            return
        while self.behind and not self.writer.closed:
            await self.writer.accepted()
        self._batch.open()  # what has gathered at the source meanwhile is joined, however long that was

    def close(self) -> None:
        """The chain is over: no timer and no task of it goes on, and what they still bring is dropped."""
        self.closed = True
        self._batch.close()
        self._owner.cancel(self._tasks)

    def spawn(
        self,
        job: Job,
        what: str,
        *,
        fail: Callable[[AgentflowError], None] | None = None,
        context: Context | None = None,
    ) -> None:
        """Start a task of the chain; what it raises is given to `fail`, and ends the run if there is none."""
        guarded = self._guard(job, what, fail or self.fail_run)
        task = self._owner.spawn(guarded, name=f"agentflow {what} of {self.info.run_id}", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, job: Job, what: str, fail: Callable[[AgentflowError], None]) -> None:
        """A run never waits for a task that has died: whatever ends one ends the run, or its chain.

        The coroutine is made here, since a task that is cancelled before its first step would never await it.
        """
        try:
            await job()
        except asyncio.CancelledError:
            if not is_cancelled():
                fail(ModelError(f"the {what} cancelled itself"))  # nobody asked for it: a fault of its own
                return
            if not self.over:  # not we: the loop is closing, or somebody cancels what is not theirs
                self.writer.stop(StoreError(f"run {self.info.run_id!r}: its {what} was cancelled from outside"))
            raise
        except MemoryError as error:
            self.fail_run(AgentflowError(f"out of memory in the {what}: {error}"))
        except AgentflowError as error:
            fail(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # The event carries one line; whoever wrote what raised needs the rest.
            logger.warning("run %s: the %s raised", self.info.run_id, what, exc_info=error)
            fail(ModelError(f"the {what} raised {type(error).__name__}: {text_of(error)}"))

    def flush(self) -> None:
        """Hand on the text that is held back."""
        self._batch.close()

    def _post_delta(self, key: BatchKey, text: str, count: int) -> None:
        if self.closed:
            return
        iteration, attempt, channel = key
        header = self.header(iteration)
        for position, piece in enumerate(pieces(text)):
            self.writer.post(
                DeltaEvent(text=piece, channel=channel, attempt=attempt, count=0 if position else count, **header)
            )
        self._said = self.writer.posted


def text_of(error: BaseException) -> str:
    """An error's text, clean and of bounded length; "" if it cannot even be asked."""
    try:
        return clean_text(str(error))[:_MAX_MESSAGE]
    except Exception:  # noqa: BLE001  an exception's own __str__ may be the fault
        return ""
