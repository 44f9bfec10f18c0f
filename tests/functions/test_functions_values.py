"""Results and final errors come back exactly: equal, and of the same types all the way down."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semel
from semel.codecs.values import ERROR, FORMAT, Raised, Returned, Values, derived_key
from semel.core.records import Result

T = TypeVar("T")
EXAMPLES = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))  # a busy machine


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, "one")


class Size(enum.IntEnum):
    SMALL = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclass
class Payment:
    money: Money
    at: datetime
    tags: frozenset[str]
    colour: Colour | None
    history: list[Money | None] = field(default_factory=list)
    number: int = field(init=False, default=3)


@dataclass
class Box(Generic[T]):
    content: T


@attrs.define(frozen=True)
class Parcel:
    _weight: Decimal
    content: Money


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    amount: Decimal = pydantic.Field(alias="theAmount")
    inner: Model | None = None
    money: Money | None = None
    _seen: int = 0


class Row(msgspec.Struct):
    money: Money
    when: date


class Point(NamedTuple):
    x: int
    money: Money


class Described(TypedDict):
    money: Money


class Declined(Exception):
    def __init__(self, code: Colour, *, amount: Decimal) -> None:
        super().__init__(f"declined: {code.name}")
        self.code = code
        self.amount = amount


class TooPoor(Declined):
    pass


Reference = NewType("Reference", Money)

zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=30)), ZoneInfo("Europe/Vienna")])
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.timedeltas(),
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.times(timezones=st.sampled_from([None, UTC])),
    st.tuples(st.integers(), st.text(max_size=2)),
    st.frozensets(st.integers(), max_size=2),
)
plain = st.recursive(
    hashables | st.floats() | st.decimals(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=3),
    ),
    max_leaves=6,
)
amounts = st.decimals(allow_nan=False)
money = st.builds(Money, amounts, st.text(max_size=3))
payments = st.builds(
    Payment,
    money,
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.frozensets(st.text(max_size=5), max_size=3),
    st.sampled_from([None, *Colour]),
    st.lists(st.none() | money, max_size=3),
)


def exact(value: Any, other: Any) -> bool:
    """Equal, of the same type, and so are the parts; NaN is itself."""
    if type(value) is not type(other):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(exact, value, other))
    if isinstance(value, dict):
        return len(value) == len(other) and all(map(exact, value.items(), other.items()))
    if isinstance(value, (set, frozenset)):
        return len(value) == len(other) and all(any(exact(each, its) for its in other) for each in value)
    if isinstance(value, float):
        return (math.isnan(value) and math.isnan(other)) or (value, str(value)) == (other, str(other))
    if isinstance(value, (datetime, time)):
        return repr(value) == repr(other)  # the zone and the fold, too
    return str(value) == str(other) if isinstance(value, Decimal) else bool(value == other)


def kept(annotation: object, value: object) -> Any:
    values = Values[object](annotation)
    result = values.encode(Returned(value))
    assert (result.format, result.ok) == (FORMAT, True)
    outcome = values.decode(result)
    assert isinstance(outcome, Returned)
    return outcome.value


@EXAMPLES
@given(plain)
def test_plain_data_needs_no_annotation(value: object) -> None:
    assert exact(kept(Any, value), value)


@EXAMPLES
@given(payments)
def test_nested_dataclasses(payment: Payment) -> None:
    found = kept(Payment, payment)
    assert found == payment
    assert exact(found.at, payment.at)
    assert exact(found.money.amount, payment.money.amount)
    assert exact(found.tags, payment.tags)


MONEY = Money(Decimal("1.10"))
MODEL = Model(theAmount=Decimal("2.50"), money=MONEY, more=("extra",))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Parcel, Parcel(Decimal("0.1"), MONEY)),
        (Model, Model(theAmount=Decimal(1), inner=MODEL)),
        (pydantic.RootModel[list[Money]], pydantic.RootModel[list[Money]]([MONEY])),
        (Row, Row(MONEY, date(2026, 11, 1))),
        (Point, Point(1, MONEY)),
        (Described, {"money": MONEY}),
        (Box[Money], Box(MONEY)),
        (Money | Point | None, Point(1, MONEY)),
        (dict[Colour, list[Size]], {Colour.PAIR: [Size.SMALL]}),
        (Right, Right.READ | Right.WRITE),
        (list[Payment], [Payment(MONEY, datetime.now(UTC), frozenset(), None)]),
        (set[UUID], {UUID(int=7)}),
        (Annotated[Reference, "said"], Reference(Money(Decimal(7)))),
        (Literal[Colour.RED, 7], Colour.RED),
        (Sequence[Money], [MONEY]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_come_back_as_they_were(annotation: object, value: object) -> None:
    found = kept(annotation, value)
    assert found == value
    assert type(found) is type(value)


def test_private_attributes_and_fields_set_of_a_model() -> None:
    model = Model(theAmount=Decimal(1))
    model._seen = 5
    found = kept(Model, model)
    assert (found._seen, found.model_fields_set, found.inner) == (5, {"amount"}, None)


def test_an_adapter_for_a_class_of_one_s_own() -> None:
    class Handle:
        def __init__(self, number: int) -> None:
            self.number = number

    with pytest.raises(semel.Unstorable, match="Handle cannot be stored as a result"):
        Values(list[Handle])
    values = Values[list[Handle]](list[Handle], adapters={Handle: (lambda handle: handle.number, Handle)})
    outcome = values.decode(values.encode(Returned([Handle(7)])))
    assert isinstance(outcome, Returned)
    assert outcome.value[0].number == 7


@pytest.mark.parametrize(
    "error", [Declined(Colour.PAIR, amount=Decimal("1.0")), TooPoor(Colour.RED, amount=Decimal(2))]
)
def test_errors_come_back_equal(error: Declined) -> None:
    values = Values[None](None, [Declined])
    result = values.encode(Raised(error))
    assert (result.format, result.ok) == (ERROR, False)
    outcome = values.decode(result)
    assert isinstance(outcome, Raised)
    found = outcome.error
    assert (type(found), found.args, vars(found)) == (type(error), error.args, vars(error))


def test_what_the_annotation_does_not_reach_is_refused() -> None:
    with pytest.raises(semel.Unstorable, match=r"Money cannot be stored.*Annotate it"):
        kept(dict[str, Any], {"a": MONEY})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(semel.Unstorable, match="nested deeper"):
        kept(list, endless)
    with pytest.raises(semel.Unstorable, match="surrogates"):
        kept(str, "\ud800")


def test_stored_names_make_nothing_that_is_not_known() -> None:
    stored = Values[Money](Money).encode(Returned(MONEY))
    with pytest.raises(semel.RecordUnreadable, match="named Money"):
        Values[Any](Any).decode(stored)
    with pytest.raises(semel.RecordUnreadable, match="format"):
        Values[Any](Any).decode(Result("http.1", b""))
    with pytest.raises(semel.RecordUnreadable):
        Values[Any](Any).decode(Result(FORMAT, b"\xc1"))


def test_a_class_may_get_a_field_or_move() -> None:
    def first() -> type:
        @dataclass
        class Order:
            number: int

        Order.__qualname__, Order.__module__ = "Order", "shop.old"
        return Order

    def second() -> type:
        @dataclass
        class Order:
            number: int
            note: str = "none"
            tags: list[str] = field(default_factory=list)

        Order.__qualname__, Order.__module__ = "Order", "shop.new"
        return Order

    def third() -> type:
        @dataclass
        class Order:
            number: int
            total: int

        Order.__qualname__, Order.__module__ = "Order", "shop.newest"
        return Order

    old, new = first(), second()
    stored = Values[Any](old).encode(Returned(old(1)))
    assert Values[Any](new).decode(stored) == Returned(new(1))
    older = Values[Any](new).encode(Returned(new(1)))
    assert Values[Any](old).decode(older) == Returned(old(1))
    stored = Values[Any](demanding := third()).encode(Returned(demanding(1, 2)))
    assert Values[Any](old).decode(stored) == Returned(old(1))
    with pytest.raises(semel.RecordUnreadable, match=r"Order\.total has no default"):
        Values[Any](demanding).decode(older)


@EXAMPLES
@given(plain, plain)
def test_derived_keys_tell_different_parts_apart(first: object, second: object) -> None:
    assert (derived_key(first) == derived_key(second)) == _same(first, second)


def _same(first: Any, second: Any) -> bool:
    return exact(_sorted(first), _sorted(second))


def _sorted(value: Any) -> Any:
    """Dictionaries in one order: theirs says nothing."""
    if isinstance(value, dict):
        return dict(sorted(((key, _sorted(each)) for key, each in value.items()), key=lambda pair: repr(pair[0])))
    return type(value)(map(_sorted, value)) if isinstance(value, (list, tuple)) else value


def test_derived_keys_know_types_and_borders() -> None:
    parts: list[tuple[object, ...]] = [(1,), ("1",), (1.0,), (True,), (b"1",), (Decimal(1),), (None,), ((1,),), ([1],)]
    parts += [("ab", "c"), ("a", "bc"), ("abc",), (Money(Decimal(1)),), (Colour.RED,), ("red",)]
    assert len({derived_key(*each) for each in parts}) == len(parts)
    assert derived_key({"a": 1, "b": {2, 1}}) == derived_key({"b": {1, 2}, "a": 1})
    with pytest.raises(ValueError, match="needs parts"):
        derived_key()
