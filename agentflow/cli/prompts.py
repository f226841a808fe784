"""What a person at the terminal decides about a run that waits for them: how they are asked, and what they may type.

It neither follows the run nor makes the decision count; `chat` does.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from agentflow.chain import AgentChain
from agentflow.cli.screen import call_line, cleaned, one_line
from agentflow.events import ApprovalEvent, QuestionEvent

Waiting: TypeAlias = QuestionEvent | ApprovalEvent
Decision: TypeAlias = Callable[[AgentChain], None]
"""Tells the run. Raises what `approve`, `reject`, `amend` and `answer` of the chain raise."""

_BY = "terminal"
_APPROVE = "approve? y, n [why], or e to edit the arguments: "


def ask(waiting: Waiting) -> Decision:
    """Show what the run waits for, and ask until there is a decision.

    Needs a terminal, and blocks until something is typed. Raises `EOFError` for Ctrl-D, and lets through what a
    signal's handler raises.
    """
    try:
        return _approval(waiting) if isinstance(waiting, ApprovalEvent) else _answer(waiting)
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")  # the cursor stands behind the prompt
        raise


def summary(waiting: Waiting) -> str:
    """What the run waits for, in a line."""
    if isinstance(waiting, ApprovalEvent):
        reason = f" ({waiting.reason})" if waiting.reason else ""
        return f"{call_line(waiting.tool, waiting.arguments)} waits for approval{reason}"
    options = f" ({', '.join(waiting.options)})" if waiting.options else ""
    return f"the agent asks: {waiting.text}{options}"


def _approval(waiting: ApprovalEvent) -> Decision:
    call_id, reason = waiting.call_id, f": {waiting.reason}" if waiting.reason else ""
    _say(one_line(f"{_sender(waiting)}{waiting.tool} needs your approval{reason}"))  # a reason may quote the model
    sys.stdout.write(f"{_json(waiting.arguments, indent=2)}\n")
    while True:
        word, _, rest = input(_APPROVE).strip().partition(" ")
        match word.lower():
            case "y" | "yes":
                return lambda chain: chain.approve(call_id, waiting.arguments_hash, by=_BY)
            case "n" | "no":
                return lambda chain: chain.reject(call_id, rest.strip(), by=_BY)
            case "e" | "edit":
                arguments = _edited(waiting.arguments)
                if arguments is not None:
                    return lambda chain: chain.amend(call_id, arguments, by=_BY)


def _answer(waiting: QuestionEvent) -> Decision:
    _say(f"{_sender(waiting)}{waiting.text}")
    for number, option in enumerate(waiting.options, 1):
        _say(f"  {number}  {option}")
    prompt = "a number, or your own words: " if waiting.options else "your answer: "
    while not (typed := input(prompt).strip()):
        pass
    text = _chosen(typed, waiting.options)
    return lambda chain: chain.answer(text, waiting.question_id, by=_BY)


def _chosen(typed: str, options: tuple[str, ...]) -> str:
    """The option of that number, unless what was typed is itself an option."""
    by_number = {str(number): option for number, option in enumerate(options, 1)}
    return typed if typed in options else by_number.get(typed, typed)


def _edited(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments as a person has changed them; None if that is no JSON object, which is said."""
    with _prefilled(_json(arguments)):
        typed = input("arguments: ")
    try:
        value = json.loads(typed)
    except (ValueError, RecursionError) as error:
        _say(f"this is not JSON: {error}")
        return None
    if not isinstance(value, dict):
        _say('expected an object such as {"name": "value"}')
        return None
    return value


@contextlib.contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Let the next line that is asked for begin with this text, where the platform can."""
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook()


def _json(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing is hidden: what a terminal would not show, or would obey, is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _sender(waiting: Waiting) -> str:
    """Who asks, if it is not the agent that the person talks to."""
    return f"{' > '.join(waiting.path)}: " if len(waiting.path) > 1 else ""


def _say(text: str) -> None:
    sys.stdout.write(f"{cleaned(text)}\n")
