"""What commands come to: the rounds of a run and its end, within their bounds."""

from agentflow.events import MAX_EVENT_BYTES, EventType, encode
from agentflow.testing import call
from tests.builders import of, run


async def test_a_call_is_told_in_the_append_of_the_reply_that_asked_for_it():
    log = await run([call("look", key="a")], "done")
    types = [event.type.value for event in log]
    assert types[:6] == ["input", "state", "model_start", "state", "model_complete", "state"]
    assert types[6:8] == ["tool_start", "state"]


async def test_a_run_has_so_many_rounds_and_says_so():
    script = [[call("look", key=str(number))] for number in range(3)]
    log = await run(*script, max_iterations=3)
    end = log[-1]
    assert (end.finish_reason, end.iterations) == ("max_iterations", 4)
    assert "limit of 3 model rounds" in end.text
    assert [e.status for e in of(log, EventType.TOOL_ERROR)] == ["limit"]
    assert len(of(log, EventType.MODEL_START)) == 3


async def test_final_fits_its_bound_however_much_the_tools_said():
    def much(n: int) -> str:
        return "x" * 64_000

    script = [[call("much", n=10 * turn + n) for n in range(10)] for turn in range(5)]
    log = await run(*script, "y" * 500_000, tools=[much], max_iterations=10)
    assert len(encode(log[-1])) <= MAX_EVENT_BYTES
    assert len(log[-1].tools) == 50
