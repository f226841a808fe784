"""Where settings come from: the only reader of the environment and of the configuration file.

Nothing here opens a connection or knows what a value is used for; modules take values, not this object's sources.
What the constructor is given beats `AGENTFLOW_*` (levels joined by `__`), that beats the file, that the defaults.
"""

import difflib
import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from agentflow.errors import ConfigError
from agentflow.settings.sections import (
    ChainSettings,
    FlowSettings,
    LimitSettings,
    MemorySettings,
    ModelSettings,
    PoolSettings,
    ProviderSettings,
    ServerSettings,
    SessionSettings,
    TelemetrySettings,
    ToolSettings,
)

PREFIX = "AGENTFLOW_"
DEFAULT_FILE = "agentflow.toml"

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"  # not of ours: it is the same for all instrumentations

_MAX_DEPTH = 32
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class Settings(BaseSettings):
    """All settings, read once when constructed. `config` is the file, `agentflow.toml` here if there is one.

    An alias stands for a model string, or for several that are tried in turn. Raises `ConfigError`, one line that
    names the key, for anything unknown, unreadable or out of range.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    config: Path | None = None
    model: ModelSettings = ModelSettings()
    providers: dict[str, ProviderSettings] = {}
    aliases: dict[str, str | tuple[str, ...]] = {}
    tools: ToolSettings = ToolSettings()
    pools: dict[str, PoolSettings] = {}
    chain: ChainSettings = ChainSettings()
    memory: MemorySettings = MemorySettings()
    session: SessionSettings = SessionSettings()
    flow: FlowSettings = FlowSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def __init__(self, **values: Any) -> None:
        _refuse_unreadable_variables()
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from None  # the original repeats the values, secrets among them

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The constructor, the environment, the file: no other source is read."""
        chosen = init_settings().get("config") or env_settings().get("config")
        return init_settings, env_settings, _file_source(settings_cls, chosen)


def provider_key(variable: str) -> SecretStr | None:
    """The key in an environment variable such as `OPENAI_API_KEY`; None if it is unset or blank."""
    value = os.environ.get(variable, "").strip()
    return SecretStr(value) if value else None


def captures_content() -> bool:
    """Whether spans are to show what was said, as the variable of OpenTelemetry's conventions says."""
    return os.environ.get(_CAPTURE, "").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def _file_source(settings_cls: type[BaseSettings], chosen: str | Path | None) -> TomlConfigSettingsSource:
    path = Path(chosen or DEFAULT_FILE)
    try:
        _refuse_unless_file(path, wanted=bool(chosen))
        return TomlConfigSettingsSource(settings_cls, path)
    except RecursionError:
        raise ConfigError(f"{str(path)!r} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # also of bytes that are no UTF-8, and of numbers with too many digits
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error


def _refuse_unless_file(path: Path, *, wanted: bool) -> None:
    # pydantic takes whatever is no file for a file without settings.
    if path.is_file():
        return
    if os.path.lexists(path):
        raise ConfigError(f"the configuration file {str(path)!r} is no file, nor a link to one")
    if wanted:
        raise ConfigError(f"the configuration file {str(path)!r} does not exist")


def _refuse_unreadable_variables() -> None:
    # pydantic only looks for what it knows, so that a slip of the pen in a variable's name would go unnoticed; and of
    # a section that is no JSON it names neither the variable nor what to write instead.
    for variable, value in os.environ.items():
        if not variable.upper().startswith(PREFIX):
            continue
        path = variable[len(PREFIX) :].lower().split("__")
        if path[0] not in Settings.model_fields:
            raise ConfigError(f"unknown variable {variable!r}; the nearest known one is {_variable(_nearest(path))!r}")
        if Path not in get_args(_kind(path)) and not _is_unicode(value):  # a file's name may be any bytes
            raise ConfigError(f"variable {variable!r} is not valid UTF-8")
        if _is_nested_too_deeply(value):
            raise ConfigError(f"the JSON in variable {variable!r} is nested too deeply")
        if _is_section(_kind(path)) and not _is_json_object(value):
            raise ConfigError(
                f"variable {variable!r} stands for a whole section: write one for each of its keys, such as "
                f"{_variable([*path, *_first_key(_kind(path))])}=..."
            )


def _variable(path: Sequence[str]) -> str:
    return PREFIX + "__".join(path).upper()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # it stands for bytes that could not be decoded
        return False
    return True


def _is_nested_too_deeply(text: str) -> bool:
    """Whether JSON goes deeper than any setting. Counted here, since Python's versions give up at different depths."""
    if not text.lstrip().startswith(("[", "{")):
        return False
    depth = deepest = 0
    for character in _JSON_STRING.sub("", text):
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:  # no JSON at all
        return False


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown setting {key!r}; the nearest known one is {'.'.join(_nearest(path))!r}"
    if first["type"] in ("model_type", "dict_type"):
        example = ".".join([*path, *_first_key(_kind(path))])
        return f"setting {key!r} is a section: set its keys, such as {example!r}"
    return f"setting {key!r}: {first['msg'].removeprefix('Value error, ')}"


# Places in the settings are paths of keys. The kind of a place is the type that stands there.


def _is_section(kind: Any) -> bool:
    return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _below(kind: Any, key: str) -> Any:
    """The kind that `key` of a section has; None where there is no such key."""
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    return kind.model_fields[key].annotation if _is_section(kind) and key in kind.model_fields else None


def _kind(path: Sequence[str]) -> Any:
    return functools.reduce(_below, path, Settings)


def _first_key(kind: Any) -> list[str]:
    """The path from a section to the first value in it."""
    if not _is_section(kind):
        return []
    key = "<name>" if get_origin(kind) is dict else next(iter(kind.model_fields))
    return [key, *_first_key(_below(kind, key))]


def _nearest(path: Sequence[str]) -> list[str]:
    """The path to a value that is most like this one."""
    kind: Any = Settings
    found: list[str] = []
    for part in path:
        if not _is_section(kind):
            break
        if _below(kind, part) is None:
            part = difflib.get_close_matches(part, kind.model_fields, n=1, cutoff=0.0)[0]  # noqa: PLW2901  its correction
        found.append(part)
        kind = _below(kind, part)
    return [*found, *_first_key(kind)]
