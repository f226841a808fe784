"""What a function's signature and docstring say to a model: a JSON Schema, and the way back to Python values.

Pure: it runs no tool and reads no raw text. What a whole tool is stands in `registry`, how the text of a model
becomes arguments in `resolvers`.
"""

import copy
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NoReturn, TypeAlias

import griffe
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from agentflow.errors import ConfigError, ToolArgumentsError
from agentflow.tools import validation

Row: TypeAlias = tuple[str, Any, str]
Parameters: TypeAlias = Mapping[str, Any] | type[BaseModel] | Sequence[Row]

_JSON_TYPES: dict[Any, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know about its call: a parameter of this type is filled in and never shown to the model.

    `user_id` comes from the run and never from the model; `attempt` counts from 1. `idempotency_key` is what
    `@tool(idempotency_key=...)` makes of the arguments, for a service that takes one too.
    """

    run_id: str
    session_id: str
    user_id: str | None
    call_id: str
    tool: str
    attempt: int = 1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Contract:
    """What a function takes: as a model sees it (`parameters`), and as Python sees it (`convert`).

    `contexts` names its `ToolContext` parameters. `adapters` has one for each argument with a Python type, or one
    under "" for all arguments together; `filled` names the arguments whose default only pydantic knows.
    """

    parameters: dict[str, Any]
    validator: Validator
    description: str = ""
    contexts: tuple[str, ...] = ()
    adapters: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)
    filled: tuple[str, ...] = ()

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments, of their declared Python types; nothing in them is shared with `arguments`.

        `arguments` must fit the schema. Raises `ToolArgumentsError` for a value that fits it but not its type: a
        validator of the user's that refuses, a number its class cannot hold.
        """
        given = copy.deepcopy(dict(arguments))
        whole = self.adapters.get("")
        if whole is not None:
            model = _converted(whole, given)
            return {name: getattr(model, name) for name in type(model).model_fields}
        values = {name: adapter.get_default_value() for name, adapter in self.adapters.items() if name in self.filled}
        converted = {name: default.value for name, default in values.items() if default is not None}
        for name, value in given.items():
            adapter = self.adapters.get(name)
            converted[name] = value if adapter is None else _converted(adapter, value, name)
        return converted


def _converted(adapter: TypeAdapter[Any], value: Any, *place: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        lines = [
            f"- {'.'.join(map(str, (*place, *item['loc'])))}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:5]
        ]
        raise ToolArgumentsError("\n".join(["The arguments were refused and the call was not run.", *lines])) from error


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    """One parameter; `required` is what Python says, `annotation` carries any default and description."""

    annotation: Any
    required: bool
    filled: bool  # its default stands in a pydantic Field, so Python does not fill it in


class _Signature:
    """The parameters of a function with their types resolved. Refuses what a model could not fill in."""

    def __init__(self, function: Callable[..., Any], name: str, *, explicit: bool) -> None:
        self.parameters: dict[str, _Parameter] = {}
        self.contexts: list[str] = []
        self.takes_any_name = False
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"tool {name!r}: {function!r} has no readable signature; wrap it in a def") from error
        namespace = _namespace(function)
        for parameter in found:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                if not explicit:
                    _refuse(name, str(parameter), "has no schema; name its arguments, or give parameters=")
                self.takes_any_name |= parameter.kind is parameter.VAR_KEYWORD
                continue
            self._add(name, parameter, namespace)

    def _add(self, tool: str, parameter: inspect.Parameter, namespace: "_Namespace") -> None:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            _refuse(tool, parameter.name, "is positional-only, but a model names its arguments; take out the '/'")
        if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            _refuse(tool, parameter.name, "is not bound; pass the object or its bound method")
        annotation = _resolved(tool, parameter, namespace)
        if annotation is ToolContext or ToolContext in typing.get_args(annotation):
            self.contexts.append(parameter.name)
            return
        default = parameter.default
        if isinstance(default, FieldInfo):
            self.parameters[parameter.name] = _Parameter(
                annotation=Annotated[annotation, default], required=default.is_required(), filled=True
            )
        elif default is parameter.empty:
            self.parameters[parameter.name] = _Parameter(annotation=annotation, required=True, filled=True)
        else:
            if default is None:
                annotation = annotation | None  # `x: int = None` is old code's way to say Optional
            self.parameters[parameter.name] = _Parameter(
                annotation=Annotated[annotation, Field(default=default)], required=False, filled=False
            )


_Namespace: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


def _refuse(tool: str, parameter: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise ConfigError(f"tool {tool!r}, parameter {parameter!r}: {why}") from cause


def called(function: Callable[..., Any]) -> Any:
    """The function that is called in the end: without a partial or a callable object around it."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inner if inspect.isroutine(inner) else type(inner).__call__


def _written(function: Callable[..., Any]) -> Any:
    """The function as it stands in the source: also without binding and wrappers."""
    inner = called(function)
    return inspect.unwrap(getattr(inner, "__func__", inner))


def _namespace(function: Callable[..., Any]) -> _Namespace:
    written = _written(function)
    if not isinstance(written, types.FunctionType):
        return {}, {}
    return written.__globals__, _closed_over(written)


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    """The variables of the functions around it by name; those that have no value yet are left out."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # it is assigned after the tool was made
            continue
    return variables


def _resolved(tool: str, parameter: inspect.Parameter, namespace: _Namespace) -> Any:
    if parameter.annotation is parameter.empty:
        return Any  # old code without hints is a tool too: any JSON value
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, *namespace, include_extras=True)[parameter.name]
    except Exception as error:  # noqa: BLE001  evaluating a hint runs foreign code
        why = (
            f"its type {parameter.annotation!r} cannot be resolved ({error}); it must be importable when the program"
            " runs, not only under TYPE_CHECKING and not local to another function"
        )
        _refuse(tool, parameter.name, why, error)


class _Generator(GenerateJsonSchema):
    """pydantic's generator; objects are closed unless their class says otherwise, and no field has a title."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Say nothing: a default that is not JSON is only left out."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def build(function: Callable[..., Any], *, name: str, parameters: Parameters | None = None) -> Contract:
    """The contract of `function`. With `parameters` they are its schema, and `**arguments` is allowed.

    A parameter without a hint takes any JSON value. Raises `ConfigError`, naming the tool and the parameter, for
    what cannot be shown to a model: a type that is unknown or not JSON, positional-only parameters, `*args`, a
    schema that is not valid, refers to something outside itself, or does not fit the signature.
    """
    signature = _Signature(function, name, explicit=parameters is not None)
    known = signature.parameters
    text, texts = read_docstring(inspect.getdoc(_written(function)) or "", known)
    if isinstance(parameters, type):
        contract = _from_model(name, parameters)
        _lint(name, signature, parameters.model_fields, parameters.model_fields)
    elif isinstance(parameters, Mapping):
        contract = _from_schema(name, parameters, signature)
    elif parameters is not None:
        contract = _from_parameters(name, _rows(name, parameters, known), {})
        _lint(name, signature, contract.adapters, contract.parameters.get("required", ()))
    else:
        contract = _from_parameters(name, known, texts)
    return replace(contract, description=text, contexts=tuple(signature.contexts))


def opaque(parameters: Mapping[str, Any], *, name: str, description: str) -> Contract:
    """The contract of something that brings its own schema and takes its arguments as they are."""
    schema = _checked(name, parameters)
    return Contract(parameters=schema, validator=validation.validator_of(schema), description=description)


def _from_parameters(tool: str, parameters: Mapping[str, _Parameter], texts: Mapping[str, str]) -> Contract:
    adapters = {name: _adapter(tool, name, parameter.annotation) for name, parameter in parameters.items()}
    mode: JsonSchemaMode = "validation"
    inputs = [(name, mode, adapter) for name, adapter in adapters.items()]
    schemas, definitions = TypeAdapter.json_schemas(inputs, schema_generator=_Generator)
    properties: dict[str, Any] = {}
    for name in adapters:
        described = {"description": texts[name]} if name in texts else {}
        properties[name] = described | schemas[name, mode]
        if properties[name].get("default", ...) is None:
            del properties[name]["default"]  # says nothing to a model
    schema = {"type": "object", "properties": properties}
    filled = tuple(name for name, parameter in parameters.items() if parameter.filled)
    required = [name for name, adapter in adapters.items() if adapter.get_default_value() is None]
    schema |= {"required": required} if required else {}
    schema = _checked(tool, schema | {"additionalProperties": False} | definitions)
    return Contract(parameters=schema, validator=validation.validator_of(schema), adapters=adapters, filled=filled)


def _adapter(tool: str, name: str, annotation: Any) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter[Any](annotation)
        adapter.json_schema(schema_generator=_Generator)
    except PydanticUserError as error:
        first = str(error).splitlines()[0]
        _refuse(tool, name, f"its type cannot be told to a model as JSON ({first}); use another, or parameters=", error)
    return adapter


def _from_model(tool: str, model: type[Any]) -> Contract:
    if not issubclass(model, BaseModel):
        raise ConfigError(
            f"tool {tool!r}: parameters= got the class {model.__qualname__!r}, which is no pydantic model"
        )
    schema = model.model_json_schema(schema_generator=_Generator)
    root = schema.pop("$ref", None)  # a model that contains itself is told by reference only
    if root is not None:
        schema |= schema["$defs"][root.rpartition("/")[2]]
    schema = _checked(tool, schema)
    return Contract(parameters=schema, validator=validation.validator_of(schema), adapters={"": TypeAdapter(model)})


def _from_schema(tool: str, given: Mapping[str, Any], signature: _Signature) -> Contract:
    schema = _checked(tool, {"type": "object"} | dict(given))
    properties = schema.get("properties", {})
    _lint(tool, signature, properties, schema.get("required", ()))
    adapters = {
        name: _adapter(tool, name, parameter.annotation)
        for name, parameter in signature.parameters.items()
        if name in properties
    }
    return Contract(parameters=schema, validator=validation.validator_of(schema), adapters=adapters)


def _rows(tool: str, rows: Sequence[Row], known: Mapping[str, _Parameter]) -> dict[str, _Parameter]:
    parameters: dict[str, _Parameter] = {}
    for row in rows:
        if isinstance(row, str) or len(row) != 3:
            raise ConfigError(f"tool {tool!r}: a row of parameters= must be (name, type, description), got {row!r}")
        name, kind, description = row
        if isinstance(kind, str) and kind not in _JSON_TYPES:
            _refuse(tool, name, f"no such JSON type: {kind!r}; known are {', '.join(_JSON_TYPES)}, or a Python type")
        required = name not in known or known[name].required
        default = Field(description=description) if required else Field(default=None, description=description)
        kind = _JSON_TYPES.get(kind, kind) if isinstance(kind, str) else kind
        parameters[name] = _Parameter(annotation=Annotated[kind, default], required=required, filled=False)
    return parameters


def _lint(tool: str, signature: _Signature, properties: Collection[str], required: Collection[str]) -> None:
    """Refuse a given schema that lets a call through which Python would refuse."""
    known = signature.parameters
    for name in properties:
        if name not in known and not signature.takes_any_name:
            _refuse(tool, name, f"stands in parameters=, but the function takes only {', '.join(known) or 'nothing'}")
    for name, parameter in known.items():
        if parameter.required and name not in properties:
            _refuse(tool, name, "is needed by the function, but missing in parameters=")
        if parameter.required and name not in required:
            _refuse(tool, name, "is needed by the function, but not required in parameters=; give it a default")


def _checked(tool: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the schema, valid and closed in itself. A remote reference would be fetched at validation."""
    if not isinstance(schema, Mapping):
        raise ConfigError(f"tool {tool!r}: parameters must be a JSON Schema object, got {schema!r}")
    checked = copy.deepcopy(dict(schema))
    if checked.get("type") != "object":
        raise ConfigError(f"tool {tool!r}: the type of parameters must be 'object', got {checked.get('type')!r}")
    try:
        Draft202012Validator.check_schema(checked)
        resource = DRAFT202012.create_resource(checked)
        resolver = Registry[Any]().with_resource("", resource).resolver()
        for reference in _references(checked):
            resolver.lookup(reference)
    except Exception as error:  # too deep, not a schema, a reference that leads nowhere
        first = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise ConfigError(f"tool {tool!r}: parameters is not a JSON Schema that stands alone: {first}") from error
    return checked


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


_SECTION_FIRST = re.compile(r"[A-Z][A-Za-z ]*:")


def read_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """What a docstring says to a model: about the whole, and about each parameter of `names` it describes.

    Google, NumPy and Sphinx style, whichever describes the most parameters. What it says about results and
    exceptions is left out.
    """
    first, _, rest = text.partition("\n")
    if _SECTION_FIRST.fullmatch(first.strip()):
        # Cleaning a docstring takes away the indentation by which a section on its first line would be known.
        rest = textwrap.dedent(rest)
        text = f"\n{first.strip()}\n{rest if rest.startswith(' ') else textwrap.indent(rest, '    ')}"
    best: tuple[str, dict[str, str]] = (text.strip(), {})
    for parse in (griffe.parse_google, griffe.parse_numpy, griffe.parse_sphinx):
        read = _read_sections(parse(griffe.Docstring(text), warnings=False), names)
        if len(read[1]) > len(best[1]) or parse is griffe.parse_google:
            best = read
    return best


def _read_sections(sections: Sequence[griffe.DocstringSection], names: Collection[str]) -> tuple[str, dict[str, str]]:
    texts: list[str] = []
    described: dict[str, str] = {}
    for section in sections:
        if section.kind is griffe.DocstringSectionKind.text:
            texts.append(section.value.strip())
        elif section.kind is griffe.DocstringSectionKind.admonition:
            texts.append(f"{section.title}: {section.value.contents}")
        elif section.kind in (
            griffe.DocstringSectionKind.parameters,
            griffe.DocstringSectionKind.other_parameters,
        ):
            described |= {item.name: " ".join(item.description.split()) for item in section.value}
    return "\n\n".join(filter(None, texts)), {name: text for name, text in described.items() if name in names and text}
