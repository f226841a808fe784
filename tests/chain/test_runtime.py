from agentflow import Agent
from agentflow.testing import ScriptedModel


async def test_every_event_of_a_run_carries_what_makes_it_that_run():
    async with Agent(name="shop", model=ScriptedModel("hi")) as agent:
        log = [event async for event in agent.stream("hello", session_id="s1", user_id="u1", metadata={"k": [1]})]
        heads = {(e.run_id, e.chain_id, e.parent_chain_id, e.session_id, e.path, e.trace_id) for e in log}
        ((run_id, chain_id, parent, session_id, path, trace_id),) = heads
    assert (chain_id, parent, session_id, path) == (run_id, None, "s1", ("shop",))
    assert len(trace_id) == 32
    assert (log[0].user_id, log[0].metadata, log[0].history_version) == ("u1", {"k": [1]}, 0)
