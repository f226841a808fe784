"""The log of a process that serves agents: structlog over the standard library's logging, one record, one line.

The library never sets it up by itself; `agentflow serve` does. Nothing that is logged, by whomever, can begin a line of
its own, move a terminal's cursor or show a secret, and no run waits for a line to be written.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor

from agentflow.bus import EventBus
from agentflow.events import AgentEvent, plain
from agentflow.messages import clean_text
from agentflow.observability.log_sink import Sink
from agentflow.observability.masking import Masks
from agentflow.observability.run_log import line_of

RUNS: Final = "agentflow.runs"  # the logger that tells of runs
MAX_TEXT: Final = 1024  # characters of one text
_MARGIN: Final = 512  # more are looked at, so that no secret is cut in two and not known any more
_MAX_TRACE: Final = 16 * 1024  # characters of a traceback, whose end says most
_MAX_LINES: Final = 200
_OWN_IDS: Final = frozenset({"run", "chain", "trace", "timestamp", "level", "logger"})  # which look like keys


@contextmanager
def logged(
    form: Literal["json", "console", "off"],
    buses: Iterable[EventBus],
    *,
    content: bool = False,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> Iterator[None]:
    """Log all records of the process, and a line for what happens in runs on these buses, for as long as this lasts.

    To standard error, or `stream`. With `content` also words of users, models and tools. `secrets` never show, beside
    all that looks like one. Records of other packages count from the level WARNING on, or as they set it themselves.
    """
    if form == "off":
        yield
        return
    sink = Sink(stream if stream is not None else sys.stderr, formatter(form, Masks(secrets)))
    root, own = logging.getLogger(), logging.getLogger("agentflow")
    level = own.level
    with ExitStack() as stack:
        stack.callback(sink.close)
        root.addHandler(sink)
        stack.callback(root.removeHandler, sink)
        own.setLevel(logging.INFO)
        stack.callback(own.setLevel, level)
        see = _tap(content)
        for bus in buses:
            stack.callback(bus.attach(see, name="log").dispose)
        yield


def formatter(form: Literal["json", "console"], masks: Masks) -> logging.Formatter:
    """Makes the line of a record, of structlog or not."""
    return ProcessorFormatter(
        foreign_pre_chain=[],
        processors=[
            _head,
            structlog.processors.format_exc_info,
            ProcessorFormatter.remove_processors_meta,
            _cleaner(masks),
            _as_json if form == "json" else _as_text,
        ],
    )


def _tap(content: bool) -> Callable[[AgentEvent], None]:  # noqa: FBT001  only called here
    log: BoundLogger = structlog.wrap_logger(
        logging.getLogger(RUNS),
        wrapper_class=BoundLogger,
        processors=[ProcessorFormatter.wrap_for_formatter],
    )

    def see(event: AgentEvent) -> None:
        line = line_of(event, content=content)
        if line is not None:
            level, what, fields = line
            log.log(level, what, **fields)

    return see


def _head(_: Any, __: str, event: EventDict) -> EventDict:
    """When, how bad, where from and what, before all else."""
    record: logging.LogRecord = event["_record"]
    head = {"timestamp": _time(record.created), "level": record.levelname.lower(), "logger": record.name}
    return {**head, "event": event["event"], **event}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _cleaner(masks: Masks) -> Processor:
    def clean(_: Any, __: str, event: EventDict) -> EventDict:
        return {name: _clean(value, name, masks) for name, value in event.items()}

    return clean


def _clean(value: Any, name: str, masks: Masks) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if not isinstance(value, str):
        return _clean_parts(plain(value), name, masks)
    text = value if value.isascii() else clean_text(value)
    if name in _OWN_IDS:
        return text
    if name == "exception":
        lines = "\n".join(_cut(line, masks) for line in text.splitlines()[-_MAX_LINES:])
        return lines if len(lines) <= _MAX_TRACE else lines[-_MAX_TRACE:].partition("\n")[2]
    return _cut(text, masks)


def _clean_parts(value: Any, name: str, masks: Masks) -> Any:
    """The same for what JSON knows."""
    if isinstance(value, dict):
        return {masks.hide(key[:MAX_TEXT]): _clean(item, key, masks) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, name, masks) for item in value]
    return value if isinstance(value, float) else _clean(value, name, masks)


def _cut(text: str, masks: Masks) -> str:
    shown = masks.hide(text[: MAX_TEXT + _MARGIN])
    return shown if len(text) <= MAX_TEXT else f"{shown[:MAX_TEXT]}..."


def _as_json(_: Any, __: str, event: EventDict) -> str:
    return json.dumps(event)  # ASCII only, so that nothing in it ends a line anywhere


def _as_text(_: Any, __: str, event: EventDict) -> str:
    """For people: the fields behind the message, a traceback below, each of its lines indented."""
    trace = event.pop("exception", None)
    head = [str(event.pop(name, "")) for name in ("timestamp", "level")]
    said, logger = event.pop("event", ""), event.pop("logger", "")
    source = "" if logger == RUNS else f"{logger}: "
    fields = "".join(f" {_printable(name)}={_value(value)}" for name, value in event.items() if value is not None)
    line = f"{head[0]} {head[1]:<7} {_printable(source + str(said))}{' ' if fields else ''}{fields}"
    if trace is None:
        return line
    return line + "".join(f"\n    | {_printable(below)}" for below in str(trace).splitlines())


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "='):
        return value
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    """The text with escapes for all that is no letter, sign or blank."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
