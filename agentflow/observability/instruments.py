"""The instruments of the metrics: their names, units, meanings and buckets.

What is counted is in `metrics`. Prometheus sees each name with "_" for ".", its unit, and `_total` for a counter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from agentflow.observability import semconv
from agentflow.observability.semconv import Semconv

Labels: TypeAlias = Mapping[str, str]
Reading: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

# Finer than the conventions' where everything is quick, and coarse where it is not well any more.
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Tally:
    """A counter that costs little to add to: OpenTelemetry asks for its sums when metrics are collected."""

    def __init__(self, meter: Meter, name: str, unit: str, description: str) -> None:
        self._sums: dict[tuple[tuple[str, str], ...], int] = {}
        observe(meter, "counter", name, unit, description, self._read)

    def add(self, amount: int, labels: Labels) -> None:
        """So many more with these labels, which are always given in the same order. 0 begins the series."""
        key = tuple(labels.items())
        self._sums[key] = self._sums.get(key, 0) + amount

    def _read(self) -> Iterable[tuple[float, Labels]]:
        return [(amount, dict(key)) for key, amount in tuple(self._sums.items())]


class Instruments:
    """All instruments that events and measurements are recorded with, made once for a meter."""

    def __init__(self, meter: Meter, conventions: Semconv) -> None:
        self.runs = Tally(meter, "agentflow.runs", "{run}", "Runs that have ended, by agent and outcome.")
        self.run_duration = _histogram(
            meter, "agentflow.run.duration", "s", "Time of runs that have ended.", semconv.AGENT_SECONDS
        )
        self.model_duration = _histogram(
            meter, "agentflow.model.duration", "s", "Time of model calls that were answered.", semconv.CALL_SECONDS
        )
        self.first_chunk = _histogram(
            meter, "agentflow.first_chunk", "s", "Time to the first piece of a model's answer.", semconv.CALL_SECONDS
        )
        self.tool_calls = Tally(meter, "agentflow.tool_calls", "{call}", "Tool calls that are closed, by status.")
        self.tool_duration = _histogram(
            meter, "agentflow.tool.duration", "s", "Time of each attempt of a tool call.", semconv.CALL_SECONDS
        )
        self.tool_retries = Tally(
            meter, "agentflow.tool_retries", "{attempt}", "Attempts of tool calls that are made again."
        )
        self.corrections = Tally(
            meter, "agentflow.argument_corrections", "{call}", "Tool calls whose arguments were corrected."
        )
        self.warnings = Tally(meter, "agentflow.warnings", "{warning}", "Warnings in the logs of runs, by code.")
        self.cancel_latency = _histogram(
            meter, "agentflow.cancel_latency", "s", "Time from a run's cancel to its end.", _SHORT_SECONDS
        )
        self.store = _histogram(meter, "agentflow.store", "s", "Time of operations of the store.", _SHORT_SECONDS)
        self.loop_lag = _histogram(
            meter, "agentflow.loop_lag", "s", "How late the event loop comes to what is due.", _SHORT_SECONDS
        )
        self.genai = _GenAI(meter) if conventions != "1.41" else None
        self.older = _Older(meter) if conventions != "0.1.0" else None


class _GenAI:
    """The conventions' own of v0.1.0."""

    def __init__(self, meter: Meter) -> None:
        self.duration = _histogram(
            meter, semconv.INFERENCE_DURATION, "s", "Time of model calls, with all attempts.", semconv.CALL_SECONDS
        )
        self.first_chunk = _histogram(
            meter, semconv.INFERENCE_FIRST_CHUNK, "s", "Time to the first chunk of an answer.", semconv.CALL_SECONDS
        )
        self.input_tokens = Tally(meter, semconv.INPUT_TOKENS, "{token}", "Tokens that models have read.")
        self.output_tokens = Tally(meter, semconv.OUTPUT_TOKENS, "{token}", "Tokens that models have written.")
        self.call_input_tokens = _histogram(
            meter, semconv.OPERATION_INPUT_TOKENS, "{token}", "Tokens that one model call has read.", semconv.TOKENS
        )
        self.call_output_tokens = _histogram(
            meter, semconv.OPERATION_OUTPUT_TOKENS, "{token}", "Tokens that one model call has written.", semconv.TOKENS
        )
        self.agent_duration = _histogram(
            meter, semconv.AGENT_DURATION, "s", "Time of an agent's work on one task.", semconv.AGENT_SECONDS
        )
        self.agent_inference_calls = _histogram(
            meter, semconv.AGENT_INFERENCE_CALLS, "{call}", "Model calls of one task.", semconv.CALLS
        )
        self.agent_tool_calls = _histogram(
            meter, semconv.AGENT_TOOL_CALLS, "{call}", "Tool calls of one task.", semconv.CALLS
        )
        self.tool_duration = _histogram(
            meter, semconv.TOOL_DURATION, "s", "Time of each attempt of a tool call.", semconv.CALL_SECONDS
        )


class _Older:
    """What had other names until 1.41, for dashboards that still look for them."""

    def __init__(self, meter: Meter) -> None:
        self.duration = _histogram(
            meter, semconv.OLD_DURATION, "s", "Time of model calls, with all attempts.", semconv.CALL_SECONDS
        )
        self.first_chunk = _histogram(
            meter, semconv.OLD_FIRST_CHUNK, "s", "Time to the first chunk of an answer.", semconv.CALL_SECONDS
        )
        self.tokens = _histogram(meter, semconv.OLD_TOKENS, "{token}", "Tokens of one model call.", semconv.TOKENS)


def observe(
    meter: Meter, kind: Literal["gauge", "counter"], name: str, unit: str, description: str, read: Reading
) -> None:
    """Have `read` give the values, with their labels, whenever the metrics are collected, on any thread.

    OpenTelemetry takes no instrument back: `read` gives nothing once it has nothing to tell.
    """

    def callback(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for value, labels in read()]

    make = meter.create_observable_gauge if kind == "gauge" else meter.create_observable_counter
    make(name, [callback], unit=unit, description=description)


def _histogram(meter: Meter, name: str, unit: str, description: str, bounds: Sequence[float]) -> Histogram:
    return meter.create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=list(bounds)
    )
