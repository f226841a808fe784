"""Break one guarantee after another and show that the suite notices: `python .ci/mutations.py [NAME ...]`.

Each mutation is a small edit in a copy of the tree; the tests named with it must then fail. Ends with exit code 1
if one does not, or if the text that it edits is not there any more. Takes about six minutes in all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20  # seconds for one test: some mutations make it wait for ever
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutation:
    """What is broken, by which edit, and which tests have to see it."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "pairing: open calls are left without a result when a run ends",
        "agentflow/chain/writer.py",
        '            for call in chain.open_calls():\n                for event in closing_events(call, "cancelled"',
        '            for call in ():\n                for event in closing_events(call, "cancelled"',
        ("tests/chain",),
    ),
    Mutation(
        "pairing: an unpaired history is sent",
        "agentflow/messages.py",
        "def unpaired(",
        "def unpaired(*_: object) -> None: return None\ndef _unpaired(",
        ("tests/test_messages.py", "tests/models/test_openai.py"),
    ),
    Mutation(
        "terminal once: the machine accepts a second end",
        "agentflow/state/table.py",
        "State.COMPLETED: {},",
        "State.COMPLETED: _row(State.COMPLETED, {}),",
        ("tests/state", "tests/chain"),
    ),
    Mutation(
        "flush order: an event overtakes the text before it",
        "agentflow/chain/work.py",
        "        self._batch.close()\n        if not self.closed:\n            self.writer.post(item)",
        "        if not self.closed:\n            self.writer.post(item)",
        ("tests/chain", "tests/test_agent.py"),
    ),
    Mutation(
        "flush order: a batch mixes channels",
        "agentflow/operators.py",
        "if key != self._key:",
        "if self._key is None:",
        ("tests/test_operators.py",),
    ),
    Mutation(
        "tap isolation: what a tap raises reaches the others",
        "agentflow/bus.py",
        "except BaseException as error:",
        "except ZeroDivisionError as error:",
        ("tests/test_bus.py",),
    ),
    Mutation(
        "accept before publish: the bus hears of events that the log refused",
        "agentflow/chain/writer.py",
        "        await self._append(draft)\n        self._accept(draft)",
        "        self._accept(draft)\n        await self._append(draft)",
        ("tests/chain",),
    ),
    Mutation(
        "validation: arguments that do not fit are run",
        "agentflow/tools/resolvers.py",
        "    if problems:\n        raise _refusal(tool, problems)",
        "",
        ("tests/tools/test_resolvers.py",),
    ),
    Mutation(
        "cut calls: a call from a reply that was cut is run",
        "agentflow/state/rounds.py",
        "if reason not in _WHOLE_REASONS:",
        "if False:",
        ("tests/state", "tests/chain"),
    ),
    Mutation(
        "amendments: the calls of an agent that begins again stay open",
        "agentflow/chain/performer.py",
        "return (*events, msgspec.structs.replace(amended, will_retry=True)),",
        "return (msgspec.structs.replace(amended, will_retry=True),),",
        ("tests/chain",),
    ),
    Mutation(
        "approvals: a call that needs one is run without",
        "agentflow/chain/tool_calls.py",
        "reason = None if approved else reason_to_ask(tool, arguments)",
        "reason = None",
        ("tests/chain/test_outcomes.py",),
    ),
    Mutation(
        "approvals: the hash of the arguments is not looked at",
        "agentflow/chain/control.py",
        "if arguments_hash is not None and arguments_hash != expected:",
        "if False:",
        ("tests/chain/test_control.py",),
    ),
    Mutation(
        "keys: the index of outcomes is not asked",
        "agentflow/chain/outcomes.py",
        "done = await self._work.runtime.store.claim_outcome(key, self._claimant(start))",
        "done = None",
        ("tests/chain/test_outcomes.py",),
    ),
    Mutation(
        "keys: calls of two runs that are numbered alike are taken for one",
        "agentflow/chain/outcomes.py",
        'return f"{self._work.info.run_id}:{start.call_id}"',
        "return start.call_id",
        ("tests/chain/test_outcomes.py",),
    ),
    Mutation(
        "keys: one is freed although the call may have had its effect",
        "agentflow/chain/outcomes.py",
        "elif tool.idempotent or key not in self._unsure:",
        "else:",
        ("tests/chain/test_outcomes.py",),
    ),
    Mutation(
        "recovery: a call that was running is run again",
        "agentflow/chain/recovery.py",
        "again = tool is not None and tool.idempotent",
        "again = tool is not None",
        ("tests/chain/test_kill.py",),
    ),
    Mutation(
        "retries: a call that may have had its effect is made again",
        "agentflow/tools/retries.py",
        'return outcome.cause == "rate_limit" and not outcome.emitted',
        "return True",
        ("tests/tools/test_retries.py", "tests/chain/test_retries.py"),
    ),
    Mutation(
        "loops: calls are not compared with those before",
        "agentflow/chain/tool_calls.py",
        "verdict = guard(self._work.chain(state), call_id, arguments, idempotent=tool.idempotent)",
        'verdict = "run"',
        ("tests/chain/test_budgets.py",),
    ),
    Mutation(
        "loops: a call whose results change is taken for a circle",
        "agentflow/state/loops.py",
        "return _Step(tool, arguments, result, _asked(call))",
        'return _Step(tool, arguments, "", _asked(call))',
        ("tests/state/test_loops.py", "tests/chain/test_budgets.py"),
    ),
    Mutation(
        "corrections: a model is corrected for ever",
        "agentflow/state/rounds.py",
        "if _is_uncorrectable(context, chain):",
        "if False:",
        ("tests/state/test_rounds.py", "tests/chain/test_budgets.py"),
    ),
    Mutation(
        "honesty: an answer that hides failures is left as it is",
        "agentflow/state/rounds.py",
        "if _hides_failure(chain):",
        "if False:",
        ("tests/state/test_rounds.py", "tests/chain/test_honest_runs.py"),
    ),
    Mutation(
        "honesty: an agent that has done nothing has succeeded for its caller",
        "agentflow/chain/nesting.py",
        "if status is None and last_calls_failed(chain):",
        "if False:",
        ("tests/chain/test_honest_runs.py",),
    ),
    Mutation(
        "attempts: a failed one is not rolled back",
        "agentflow/chain/model_calls.py",
        "self._work.post(RollbackEvent(",
        "repr(RollbackEvent(",
        ("tests/chain/test_attempts.py",),
    ),
    Mutation(
        "attempts: the text of a failed one stays",
        "agentflow/state/reducer.py",
        'context.with_round(text="", reasoning="", void=True), (command,)',
        "context.with_round(void=True), (command,)",
        ("tests/state", "tests/chain/test_attempts.py"),
    ),
    Mutation(
        "attempts: a refused request is made again",
        "agentflow/models/resilience.py",
        "if not error.retryable or attempt >= self.attempts:",
        "if attempt >= self.attempts:",
        ("tests/models/test_resilience.py", "tests/chain/test_attempts.py"),
    ),
    Mutation(
        "sessions: a run that had to stop keeps its own",
        "agentflow/chain/writer.py",
        "await self._runtime.store.close_session(key, run_id, None, token=self.token)",
        "pass",
        ("tests/chain/test_writer.py",),
    ),
    Mutation(
        "sessions: a run that another process has superseded goes on",
        "agentflow/chain/leases.py",
        "if asked is not None and self._held.get(run_id) is lease:",
        "if False:",
        ("tests/chain/test_busy_sessions.py",),
    ),
    Mutation(
        "sessions: a run that this agent has superseded goes on",
        "agentflow/agent.py",
        'if self._ready().memory.busy == "supersede":',
        "if False:",
        ("tests/chain/test_busy_sessions.py",),
    ),
    Mutation(
        "memory: a summary that is worth too little is sent",
        "agentflow/memory/compression.py",
        "if summary.confidence >= confidence",
        "if True",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "memory: what is worth too little is not made anew",
        "agentflow/memory/summary.py",
        "if summary.confidence >= confidence:",
        "if True:",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "memory: a session is summarised twice at the same time",
        "agentflow/chain/remembering.py",
        "if session.key in self.at_work:",
        "if False:",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "memory: a fact that was deleted is learnt again",
        "agentflow/chain/remembering.py",
        "turns[begin - first :]",
        "turns",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "memory: an old fact takes the place of a newer one",
        "agentflow/chain/remembering.py",
        "list_facts(user_id, superseded=True)",
        "list_facts(user_id)",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "memory: a summary is kept of turns that are there no more",
        "agentflow/chain/remembering.py",
        "seen is None or seen.number != session.number or",
        "seen is None or",
        ("tests/chain/test_remembering.py",),
    ),
    Mutation(
        "history: a turn is kept without what its run said last",
        "agentflow/chain/writer.py",
        "messages=messages)  # type: ignore[arg-type]",
        "messages=messages[:-1])  # type: ignore[arg-type]",
        ("tests/chain/test_history.py",),
    ),
    Mutation(
        "reading: a reader of a dropped log goes on for ever",
        "agentflow/event_log.py",
        "if waited:",
        "if False:",
        ("tests/chain/test_handle.py",),
    ),
    Mutation(
        "access: every secret is that of the key",
        "agentflow/transports/auth.py",
        "if not hmac.compare_digest(given.encode(), expected.encode()) or known is None:",
        "if known is None:",
        ("tests/transports/test_auth.py",),
    ),
    Mutation(
        "access: keys are compared as texts are, which takes as long as they are alike",
        "agentflow/transports/auth.py",
        "if not hmac.compare_digest(given.encode(), expected.encode()) or known is None:",
        "if given != expected or known is None:",
        ("tests/transports/test_auth.py",),
    ),
    Mutation(
        "access: a ticket is good more than once",
        "agentflow/transports/auth.py",
        "self._issued.pop(_digest(ticket), (0.0, None))",
        "self._issued.get(_digest(ticket), (0.0, None))",
        ("tests/transports/test_auth.py",),
    ),
    Mutation(
        "access: a key that is revoked keeps what it has open",
        "agentflow/transports/server.py",
        "self.connections.end(gone)",
        "pass",
        ("tests/transports/test_tenants.py",),
    ),
    Mutation(
        "access: pages of every origin are let in",
        "agentflow/transports/auth.py",
        "if origin in settings.allowed_origins:",
        "if True:",
        ("tests/transports/test_origins.py",),
    ),
    Mutation(
        "access: every host name is the server's",
        "agentflow/transports/app.py",
        "        check_host(request, settings)\n",
        "",
        ("tests/transports/test_origins.py",),
    ),
    Mutation(
        "access: what another site makes a browser ask is done",
        "agentflow/transports/routes.py",
        "check_site(request, server.settings.server)",
        "pass",
        ("tests/transports/test_origins.py",),
    ),
    Mutation(
        "access: runs are everybody's",
        "agentflow/transports/server.py",
        "if owner is None or not (caller.sees_all or owner[0] == caller.user_id):",
        "if owner is None:",
        ("tests/transports/test_tenants.py",),
    ),
    Mutation(
        "access: a key stands for every user",
        "agentflow/transports/auth.py",
        "if self.key_id is not None:",
        "if False:",
        ("tests/transports/test_tenants.py",),
    ),
    Mutation(
        "access: what is for operators is for all",
        "agentflow/transports/auth.py",
        'if scope != "open" and scope not in caller.scopes and not caller.sees_all:',
        "if False:",
        ("tests/transports/test_tenants.py",),
    ),
    Mutation(
        "input: a body may be nested as deep as it likes",
        "agentflow/transports/bodies.py",
        "if depth >= MAX_DEPTH:",
        "if False:",
        ("tests/transports/test_bad_input.py",),
    ),
    Mutation(
        "input: a body in pieces is read without bound",
        "agentflow/transports/bodies.py",
        "if size > limit:",
        "if False:",
        ("tests/transports/test_bad_input.py",),
    ),
    Mutation(
        "input: a client of the WebSocket need not mask",
        "agentflow/transports/masking.py",
        "if not head[1] & _MASKED:",
        "if False:",
        ("tests/transports/test_masking.py",),
    ),
    Mutation(
        "pairing: a model is shown what clients of OpenAI's API send as it comes",
        "agentflow/memory/window.py",
        "repair(said, self._call_ids)",
        "said",
        ("tests/transports/test_openai_api.py",),
    ),
    Mutation(
        "pairing: a client of AG-UI resumes without an answer to all that waits",
        "agentflow/transports/ag_ui.py",
        "    if missing:",
        "    if False:",
        ("tests/transports/test_ag_ui.py",),
    ),
)


def red(mutation: Mutation) -> bool:
    """Whether the tests fail on the mutated copy."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "main"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        )
        source = tree / mutation.path
        text = source.read_text(encoding="utf-8")
        if mutation.before not in text:
            sys.exit(f"{mutation.name}: the text to change is not in {mutation.path} any more; adapt .ci/mutations.py")
        source.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--timeout={PATIENCE}"]
        command = [sys.executable, "-m", "pytest", *options, *mutation.tests]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"{mutation.name}: the tests did not run\n{done.stdout[-2000:]}{done.stderr[-1000:]}")
        return done.returncode == 1


def main() -> None:
    """Run the mutations whose names hold one of the words given, or all."""
    words = sys.argv[1:]
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation.name for word in words)]
    missed = 0
    for mutation in chosen:
        noticed = red(mutation)
        missed += not noticed
        print(f"{'red  ' if noticed else 'GREEN'} {mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations were noticed")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
