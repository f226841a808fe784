"""What becomes a tool, and what does not."""

import dataclasses
import functools
import sys
import typing

import pytest

from agentflow.errors import ConfigError
from agentflow.tools.policy import OPTIONS, options_of
from agentflow.tools.registry import Tool, ToolRegistry, tool


@tool
def order_detail(order_id: str) -> str:
    """Look up one order.

    Args:
        order_id: Order number.
    """
    return order_id


class Weather:
    """A service as users have them: most of it is nobody's business."""

    region = "EU"

    def __init__(self, prefix="w"):
        self.prefix = prefix

    @tool
    def today(self, city: str) -> str:
        """Say today's weather."""
        return f"{self.prefix}:{city}"

    def delete_everything(self):
        raise AssertionError("never exposed")

    @property
    def secret(self):
        raise AssertionError("never read")

    @staticmethod
    def helper():
        raise AssertionError("never exposed")

    @classmethod
    def create(cls):
        raise AssertionError("never exposed")

    def __call__(self):
        raise AssertionError("never exposed")

    @tool(name="forecast", timeout=5)
    async def tomorrow(self, city: str) -> str:
        """Say tomorrow's weather."""
        return f"{self.prefix}:{city}"

    @staticmethod
    @tool
    def units() -> str:
        """Name the units."""
        return "metric"


class Lookup:
    name = "lookup"
    description = "Looks up."
    parameters: typing.ClassVar = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

    def execute(self, arguments):
        return arguments["q"]


def test_a_decorated_function_is_still_the_same_function():
    def plain(a: int) -> int:
        return a

    assert tool(plain) is plain
    assert tool(name="other")(plain) is plain
    assert order_detail("7") == "7"


def test_what_a_model_is_told_comes_from_the_function():
    (spec,) = ToolRegistry([order_detail]).specs()

    assert spec.name == "order_detail"
    assert spec.description == "Look up one order."
    assert spec.parameters["properties"] == {"order_id": {"type": "string", "description": "Order number."}}


def test_the_options_of_the_decorator_win_over_the_function():
    @tool(name="x", description="d", examples=[{"a": 1}], timeout=2, pool="slow")
    def probe(a: int):
        """Not this."""
        return a

    (made,) = ToolRegistry([probe])

    assert (made.name, made.description, made.examples, made.timeout, made.pool) == ("x", "d", ({"a": 1},), 2, "slow")


@pytest.mark.parametrize("option", ["retry", "approve", "idempotence", "parallel"])
def test_an_option_that_does_not_exist_is_refused_rather_than_ignored(option):
    with pytest.raises(TypeError, match=option):
        tool(**{option: True})


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", None])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    with pytest.raises(ConfigError, match="timeout"):
        tool(timeout=timeout)


def key(arguments):
    return "k"


ALL = {
    "timeout": 2.5,
    "pool": "slow",
    "is_error": key,
    "retries": 0,
    "approval": True,
    "idempotent": True,
    "idempotency_key": ["order_id"],
    "sequential": True,
    "degraded": "The shop is closed.",
}


def test_every_option_reaches_the_tool_from_a_function_and_from_an_object():
    class Carrier(Lookup):
        parameters: typing.ClassVar = {"type": "object", "properties": {"order_id": {}}}

    def plain(order_id: str):
        return order_id

    carrier = Carrier()
    for name, value in ALL.items():
        setattr(carrier, name, value)
    untold = ToolRegistry([Carrier(), plain])
    told = ToolRegistry([carrier, tool(**ALL)(plain)])

    assert set(ALL) == set(OPTIONS)
    assert [options_of(made) for made in told] == [ALL, ALL]
    assert [options_of(made) for made in untold] == [OPTIONS, OPTIONS]


def test_an_option_of_an_object_that_cannot_be_is_refused_and_the_tool_named():
    class Carrier(Lookup):
        retries = "often"

    with pytest.raises(ConfigError, match="tool 'lookup': retries='often', expected a whole number"):
        ToolRegistry([Carrier()])


@pytest.mark.parametrize("option", list(OPTIONS))
def test_an_option_that_cannot_be_is_refused_where_it_is_declared(option):
    with pytest.raises(ConfigError, match=rf"@tool: {option}=<object .*, expected "):
        tool(**{option: object()})


def test_a_key_may_only_be_made_of_parameters():
    @tool(idempotency_key=["order_id", "customer"])
    def pay(order_id: str, cents: int):
        return cents

    with pytest.raises(ConfigError, match=r"'pay': idempotency_key names 'customer'.*parameters are: order_id, cents"):
        ToolRegistry([pay])

    class Opaque(Lookup):
        parameters: typing.ClassVar = {"type": "object"}
        idempotency_key = ("q",)

    with pytest.raises(ConfigError, match=r"idempotency_key names 'q'.*parameters are: none"):
        ToolRegistry([Opaque()])


def test_a_tool_may_be_subclassed_and_is_then_taken_as_it_is():
    @dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
    class Remote(Tool):
        address: str

    (made,) = ToolRegistry([order_detail])
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    remote = Remote(**fields | {"name": "remote"}, address="there")
    registry = ToolRegistry([order_detail, remote])

    assert registry.get("remote") is remote
    assert remote.spec.parameters == made.parameters
    assert len({made, remote, dataclasses.replace(made)}) == 3  # a tool is itself, not what it says


def test_an_object_offers_its_decorated_methods_in_order_and_nothing_else():
    registry = ToolRegistry([Weather("p")])

    assert [made.name for made in registry] == ["today", "forecast", "units"]
    assert list(registry.get("today").parameters["properties"]) == ["city"]
    assert registry.get("today").function("Rome") == "p:Rome"
    assert registry.get("forecast").timeout == 5


def test_a_service_that_looks_like_a_tool_itself_still_offers_its_decorated_methods_only():
    class Database:
        name = "orders"
        description = "The orders' database."
        parameters: typing.ClassVar = {"type": "object"}

        def execute(self, statement):
            raise AssertionError("never exposed")

        @tool
        def count_orders(self) -> int:
            """Count them."""
            return 5

    assert [found.name for found in ToolRegistry([Database()])] == ["count_orders"]


def test_a_subclass_that_overrides_a_tool_without_decorating_it_does_not_offer_it():
    class Quiet(Weather):
        def today(self, city: str) -> str:
            return city

        @tool
        def more(self) -> str:
            return ""

    assert [made.name for made in ToolRegistry([Quiet()])] == ["forecast", "units", "more"]


def test_functions_bound_methods_and_partials_passed_in_need_no_decorator():
    def plain(a: int) -> int:
        return a

    registry = ToolRegistry([plain, Weather().tomorrow, functools.partial(order_detail, order_id="1")])

    assert [made.name for made in registry] == ["plain", "forecast", "order_detail"]


def test_an_object_with_name_description_parameters_and_execute_is_a_tool():
    (made,) = ToolRegistry([Lookup()])

    assert (made.name, made.description, made.parameters) == ("lookup", "Looks up.", Lookup.parameters)
    assert made.function(q="x") == "x"


def test_a_ready_tool_is_taken_as_it_is():
    (made,) = ToolRegistry([order_detail])

    assert ToolRegistry([made]).get("order_detail") is made
    assert isinstance(made, Tool)


def test_the_kind_says_where_a_function_is_called():
    async def coroutine():
        return 1

    def generator():
        yield 1

    async def async_generator():
        yield 1

    def sync():
        return 1

    class Callable:
        async def __call__(self):
            return 1

    items = [coroutine, generator, async_generator, sync, functools.partial(coroutine), Callable()]
    kinds = [next(iter(ToolRegistry([item]))).kind for item in items]

    assert kinds == ["coroutine", "generator", "async_generator", "sync", "coroutine", "coroutine"]


def test_two_tools_of_one_name_are_refused_and_both_are_named():
    def order_detail_again(order_id: str):
        return order_id

    registry = ToolRegistry([order_detail])
    with pytest.raises(ConfigError, match=r"'order_detail'.*test_registry\.order_detail and .*order_detail_again"):
        registry.add(tool(name="order_detail")(order_detail_again))
    assert len(registry) == 1


def test_an_item_that_is_refused_adds_nothing():
    registry = ToolRegistry([tool(name="forecast")(lambda: 1)])
    with pytest.raises(ConfigError, match="forecast"):
        registry.add(Weather())

    assert [made.name for made in registry] == ["forecast"]


@pytest.mark.parametrize("name", ["a b", "x" * 65, "naïve", "a.b", "a\n"])
def test_a_name_that_providers_refuse_is_refused(name):
    with pytest.raises(ConfigError, match="may not be named"):
        ToolRegistry([tool(name=name)(lambda: 1)])


def test_a_lambda_needs_a_name():
    with pytest.raises(ConfigError, match="<lambda>"):
        ToolRegistry([lambda: 1])
    assert "one" in ToolRegistry([tool(name="one")(lambda: 1)])


@pytest.mark.parametrize("item", [Weather, 5, "order_detail", None, object(), {"name": "x"}])
def test_what_is_no_tool_is_refused(item):
    with pytest.raises(ConfigError, match=r"class; pass an object|is no tool"):
        ToolRegistry([item])


def test_the_decorator_refuses_what_it_cannot_mark():
    with pytest.raises(ConfigError, match="below @staticmethod"):
        tool(staticmethod(len))
    with pytest.raises(ConfigError, match="wrap it in a def"):
        tool(len)
    with pytest.raises(ConfigError, match="wrap it in a def"):
        tool(Weather().today)


def test_an_object_that_answers_to_every_name_is_not_taken_for_a_tool():
    class Anything:
        def __getattr__(self, name):
            return Anything()

    class Holder:
        thing = Anything()

    with pytest.raises(ConfigError, match="is no tool"):
        ToolRegistry([Holder()])


def test_an_example_that_would_be_refused_is_refused_at_once():
    @tool(examples=[{"order": "1"}])
    def probe(order_id: str):
        return order_id

    with pytest.raises(ConfigError, match="does not fit its schema"):
        ToolRegistry([probe])


def test_the_hash_is_of_names_descriptions_and_schemas_in_any_order():
    def other(order_id: str):
        return order_id

    first = ToolRegistry([order_detail, other]).hash

    assert first == ToolRegistry([other, order_detail]).hash
    assert first != ToolRegistry([order_detail]).hash
    assert first != ToolRegistry([order_detail, tool(description="changed")(other)]).hash
    assert len(first) == 64


def test_the_decorator_above_a_class_takes_its_own_public_methods_with_a_docstring_and_nothing_else():
    class Base:
        def inherited(self) -> str:
            """Not defined by the class that is decorated."""
            raise AssertionError("never exposed")

    @tool(timeout=7, idempotent=True, retries=1, sequential=True, approval=True, degraded="Closed.")
    class Shop(Base):
        """A service full of methods."""

        def orders(self, customer: str) -> str:
            """List a customer's orders."""
            return customer

        @tool(name="refund", timeout=3)
        def give_back(self, order_id: str) -> str:
            """Refund an order."""
            return order_id

        @staticmethod
        def currency() -> str:
            """Name the currency."""
            return "EUR"

        @classmethod
        def kind(cls) -> str:
            """Name the kind of shop."""
            return cls.__name__

        def undocumented(self):
            raise AssertionError("never exposed")

        def _private(self):
            """Never exposed."""

        def __call__(self):
            """Never exposed."""

        @property
        def secret(self):
            """Never read."""
            raise AssertionError("never read")

        class Inner:
            """Never exposed."""

    registry = ToolRegistry([Shop()])

    assert [made.name for made in registry] == ["orders", "refund", "currency", "kind"]
    assert [made.timeout for made in registry] == [7, 3, 7, 7]
    assert [made.idempotent for made in registry] == [True, False, True, True]
    told = {"timeout": 7, "idempotent": True, "retries": 1, "sequential": True, "approval": True, "degraded": "Closed."}
    assert options_of(registry.get("orders")) == OPTIONS | told
    assert registry.get("orders").function("Ann") == "Ann"
    with pytest.raises(ConfigError, match="is a class; pass an object"):
        ToolRegistry([Shop])


@pytest.mark.parametrize("option", [{"name": "x"}, {"examples": [{}]}, {"idempotency_key": ["order_id"]}])
def test_above_a_class_there_are_only_the_options_that_methods_can_share(option):
    with pytest.raises(ConfigError, match=r"'.*Shop' takes timeout=.*, approval=, idempotent=, sequential=, degraded="):

        @tool(**option)
        class Shop:
            pass


def test_a_service_full_of_public_methods_exposes_none_without_a_decorator():
    class Service:
        def delete(self, order_id: str) -> str:
            """Delete an order."""
            raise AssertionError("never exposed")

        def describe(self) -> str:
            """Describe the service."""
            raise AssertionError("never exposed")

    with pytest.raises(ConfigError, match="is no tool"):
        ToolRegistry([Service()])


SHOP = {
    "__init__": "from shop_{n}.orders import order_detail, helper\n",
    "__main__": "raise SystemExit('a program')\n",
    "orders": """
from agentflow.tools import calculator, tool

@tool
def order_detail(order_id: str) -> str:
    '''Look up an order.'''
    return order_id

alias = order_detail

def helper(order_id: str) -> str:
    '''Not decorated.'''

class Proxy:
    def __getattribute__(self, name):
        raise RuntimeError(name)

proxy = Proxy()
""",
    "parts/__init__": "",
    "parts/stock": """
from agentflow.tools import tool

class Stock:
    def __init__(self, client="none"):
        self.client = client

    @tool
    def in_stock(self, sku: str) -> str:
        '''Say whether a thing is in stock.'''
        return f"{self.client}:{sku}"

    def delete_all(self):
        '''Not decorated.'''

class Plain:
    def method(self):
        '''Not decorated.'''
""",
}


@pytest.fixture
def shop(tmp_path, monkeypatch, request):
    """A package on disk, of a name of its own."""
    name = f"shop_{abs(hash(request.node.name))}"
    for path, text in SHOP.items():
        file = tmp_path / name / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("shop_{n}", name), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / name
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def test_discover_takes_what_is_decorated_in_a_package_and_all_below_it(shop):
    registry = ToolRegistry()
    registry.discover(shop.name, factory=lambda kind: kind("injected"))

    assert [made.name for made in registry] == ["order_detail", "in_stock"]
    assert registry.get("in_stock").function("A") == "injected:A"


def test_discover_of_one_module_takes_no_more(shop):
    registry = ToolRegistry()
    registry.discover(f"{shop.name}.orders")

    assert [made.name for made in registry] == ["order_detail"]


def test_a_class_needs_a_factory_which_may_leave_it_out(shop):
    registry = ToolRegistry()
    with pytest.raises(ConfigError, match=r"parts\.stock\.Stock has @tool methods.*factory="):
        registry.discover(shop.name)
    assert len(registry) == 0

    registry.discover(shop.name, factory=lambda kind: None)
    assert [made.name for made in registry] == ["order_detail"]


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "1 / 0", "def broken(:"])
def test_a_module_that_cannot_be_imported_is_named_and_nothing_is_added(shop, text):
    (shop / "parts" / "worse.py").write_text(text, encoding="utf-8")
    registry = ToolRegistry()

    with pytest.raises(ConfigError, match=rf"'{shop.name}\.parts\.worse', which cannot be imported"):
        registry.discover(shop.name, factory=lambda kind: kind())
    assert len(registry) == 0
