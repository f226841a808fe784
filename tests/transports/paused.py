"""A model that stands still where a test wants to look."""

import asyncio

from agentflow.models.base import CallRequest, ModelChunk

WAIT = object()  # a step of a turn: nothing more is said until the test lets it


class Paused:
    """A model that plays its turns: text, chunks, calls and errors, and stands still at each `WAIT`.

    `await standing()` is when it stands there, `go()` lets it on. After the last turn it says "Well.".
    """

    provider = name = "paused"

    def __init__(self, *turns):
        self.requests = []
        self._turns = list(turns)
        self._may_go = asyncio.Semaphore(0)
        self._stands = asyncio.Semaphore(0)

    async def standing(self):
        await self._stands.acquire()

    def go(self):
        self._may_go.release()

    async def stream(self, request):
        self.requests.append(request)
        turn = self._turns.pop(0) if self._turns else ["Well."]
        calls = [step for step in turn if isinstance(step, CallRequest)]
        for step in turn:
            if step is WAIT:
                self._stands.release()
                await self._may_go.acquire()
            elif isinstance(step, Exception):
                raise step
            elif isinstance(step, ModelChunk):
                yield step
            elif isinstance(step, str):
                yield ModelChunk(text=step)
        yield ModelChunk(calls=tuple(calls), finish_reason="tool_calls" if calls else "stop", count=0)
