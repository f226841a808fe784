"""Structured output: the JSON form that an agent's answers must have, and how an answer is held against it."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentflow.errors import ConfigError

_MAX_ERRORS = 5


class Output:
    """A type that pydantic knows, as the form of an answer: a model, a dataclass, a TypedDict, a list of them."""

    def __init__(self, form: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(form)
            self.schema = self._adapter.json_schema()
        except Exception as error:
            raise ConfigError(f"output={form!r} is no type that has a JSON Schema: {error}") from error

    def parse(self, text: str) -> Any:
        """The answer as an object of the type. Raises pydantic's `ValidationError`."""
        return self._adapter.validate_json(_unfenced(text))

    def fault(self, text: str) -> str | None:
        """What is wrong with an answer, in words for the model; None if nothing is."""
        try:
            self.parse(text)
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}."
                for item in error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
            ]
            return " ".join(lines)
        return None


def _unfenced(text: str) -> str:
    """The JSON within a Markdown fence, which many models put round it; any other text as it is."""
    stripped = text.strip()
    if not (stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped):
        return stripped
    return stripped.partition("\n")[2][:-3].strip()
