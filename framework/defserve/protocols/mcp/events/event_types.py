"""A type of event, read from a function: what subscribers may filter by, and what the data of an event is.

    @server.event
    def pushed(repository: str, branch: str | None = None) -> Push:
        \"\"\"Somebody pushed commits.\"\"\"

The parameters are the filter, the return annotation is the data. A plain function only declares: it is never called, so
one with a body is refused. An async generator is a source: it runs while somebody listens, once for each set of
arguments, and each value that it yields is an event for who gave exactly these arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pydantic_core import PydanticSerializationError, to_jsonable_python

from defserve.binding.arguments import require_annotation_schemas
from defserve.binding.json_schemas import find_json_types, move_combiners_to_description
from defserve.binding.results import find_result_annotation, make_structured_packer
from defserve.binding.signature import Signature, format_annotation
from defserve.core.messages import Params
from defserve.errors import BadArguments, InvalidParams, LimitExceeded, UsageError
from defserve.protocols.mcp.errors import read_optional_object_param
from defserve.protocols.mcp.events.draft import DELIVERY_MODES, MAX_EVENT_DATA_BYTES, MIN_POLL_MS, DeliveryMode
from defserve.protocols.mcp.function import FindProvider, Function, find_no_provider
from defserve.protocols.mcp.items import Item, ItemOptions, check_item_options, choose_item_name
from defserve.protocols.mcp.lifecycle import Dialect

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.call import Call
    from defserve.protocols.mcp.events.event_log import Occurrence
    from defserve.protocols.mcp.events.extension import Events

OccurrenceListener: TypeAlias = "Callable[[Occurrence], None]"
"""Gets each event of a type once it is in the log, for another protocol. It neither waits nor raises."""

EVENT_ID_PARAMETER: Final = "event_id"
"""What `emit_event` takes itself, so no filter can have this name."""

MAX_FILTER_BYTES: Final = 8 * 1024
MAX_COUNT: Final = 2**53

T = TypeVar("T")


class EventTypeOptions(ItemOptions):
    """What a type of event may say about itself.

    `delivery` are the ways in which clients may get it; by default, all that this server has. `poll` is how many
    seconds a client should wait between two polls. `scopes` are what a caller's token must hold to see it. `also` are
    channels (MGP) and feature sets (MCPL) that each event goes to as well.
    """

    delivery: Sequence[DeliveryMode] | None = None
    poll: float = 5.0
    also: Sequence[Any] = ()


class EventType(Item[EventTypeOptions]):
    """One type of event. `delivery` are the ways in which it is delivered; `feeds` get each of its events as well."""

    __slots__ = ("payload_schema", "delivery", "feeds", "_pack")

    kind = "event"

    def __init__(
        self, name: str, options: EventTypeOptions, function: Function, delivery: tuple[DeliveryMode, ...], owner: Any
    ) -> None:
        super().__init__(name, options, function, owner)
        self.delivery = delivery
        self.feeds: tuple[OccurrenceListener, ...] = ()
        signature = function.signature
        annotation, subject = find_result_annotation(signature), f"event {name!r}"
        if annotation is Parameter.empty:
            annotation = Any
        made = require_annotation_schemas(annotation, where=signature.where, subject=subject)
        if find_json_types(made.output) != {"object"}:
            raise UsageError(
                f"{subject}: its data would be {format_annotation(annotation)}, and that is not an object",
                where=signature.where,
                fix="annotate the return with a model, a dataclass or a TypedDict: -> Push",
            )
        self.payload_schema = move_combiners_to_description(made.portable_output)
        self._pack = make_structured_packer(made, annotation)

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        options: EventTypeOptions,
        *,
        available: Sequence[DeliveryMode] = DELIVERY_MODES,
        find_provider: FindProvider = find_no_provider,
        owner: Any = None,
    ) -> EventType:
        """Read a function into a type of event. Raises UsageError for one that could not be delivered."""
        bound = Function(function, find_provider)
        signature = bound.signature
        check_item_options(options, signature)
        name = choose_item_name("event", options.name, signature)
        _check_body(name, signature)
        if signature.injected:
            raise UsageError(
                f"event {name!r}: {signature.injected[0].name} would be filled in for a call, and there is none",
                where=signature.where,
                fix="leave the parameter out: those of an event are what subscribers filter by",
            )
        if any(parameter.name == EVENT_ID_PARAMETER for parameter in signature.parameters):
            raise UsageError(
                f"event {name!r} has a parameter {EVENT_ID_PARAMETER!r}, which emit_event takes itself",
                where=signature.where,
                fix="give the parameter another name",
            )
        return cls(name, options, bound, _choose_delivery(name, options, signature, available), owner)

    @property
    def is_source(self) -> bool:
        """Whether its function yields the events."""
        return self.function.signature.flow == "async_generator"

    @property
    def poll_ms(self) -> int:
        return max(MIN_POLL_MS, round(self.options.poll * 1000))

    def describe(self, dialect: Dialect) -> Params:
        """The type as `events/list` shows it."""
        described: Params = {
            "name": self.name,
            "description": self.description,
            "delivery": list(self.delivery),
            "inputSchema": self.function.arguments.publish_schema(),
            "payloadSchema": self.payload_schema,
        }
        return described | ({"_meta": dict(self.options.meta)} if self.options.meta else {})

    def to_wire(self, occurrence: Occurrence, cursor: str | None = None) -> Params:
        """An event of this type as clients get it."""
        return occurrence.to_wire(self.name, cursor)

    def is_open_to(self, caller: Principal) -> bool:
        """Whether who subscribed may still have it, though it calls nothing."""
        return not caller.missing(self.options.scopes)

    @property
    def is_missing_temporarily(self) -> bool:
        """Whether it is missing only because the server behind this one that has it is away."""
        return False

    async def check_subscriber(self, call: Call, events: Events, wanted: Params) -> None:
        """Somebody begins to listen, or polls. Raises what it is told if that is impossible."""

    async def run_source(self, events: Events, wanted: Params) -> None:
        """Add what its function yields to the log, for those who gave these arguments."""
        signature = self.function.signature
        wire = {each.name: each.wire_name for each in signature.parameters}
        arguments = self.function.arguments.validate({wire[name]: value for name, value in wanted.items()})
        async with aclosing(signature.function(**arguments)) as payloads:
            async for payload in payloads:
                await events.append(self, wanted, self.pack_payload(payload), is_exact=True)

    def is_compatible(self, before: EventType) -> bool:
        """Whether who subscribed to another type of this name can go on with this one."""
        return (
            self.payload_schema == before.payload_schema
            and self.function.arguments.schema == before.function.arguments.schema
        )

    def parse_filter(self, arguments: Params | None) -> Params:
        """The arguments of a subscriber, checked. One that is null filters nothing. Raises BadArguments."""
        values = to_jsonable_python(self.function.arguments.validate(arguments))
        found = {name: value for name, value in values.items() if value is not None}
        if len(encode_canonical_json(found)) > MAX_FILTER_BYTES:
            raise LimitExceeded(
                f"the arguments have more than {MAX_FILTER_BYTES} bytes",
                data={"limit": "event_arguments", "max": MAX_FILTER_BYTES},
            )
        return found

    def pack_emitted_arguments(self, arguments: Mapping[str, Any]) -> Params:
        """The arguments that an event is emitted with, as they are compared. Raises UsageError for wrong ones."""
        wire = {each.name: each.wire_name for each in self.function.signature.parameters}
        try:
            values = to_jsonable_python({wire.get(name, name): value for name, value in arguments.items()})
            return to_jsonable_python(self.function.arguments.validate(values))
        except (BadArguments, PydanticSerializationError) as error:
            raise UsageError(
                f"event {self.name!r} cannot be emitted with these arguments: {error}",
                fix="give a value for each parameter of its function that has no default",
            ) from None

    def pack_payload(self, payload: Any) -> Params:
        """The data of an event. Raises TypeError if it does not fit the annotation, and LimitExceeded."""
        data: Any = self._pack(payload).structured
        if (size := len(json.dumps(data))) > MAX_EVENT_DATA_BYTES:
            raise LimitExceeded(
                f"the data of an event {self.name!r} has {size} bytes, and {MAX_EVENT_DATA_BYTES} is the most",
                data={"limit": "event_data", "max": MAX_EVENT_DATA_BYTES},
            )
        return data


def _check_body(name: str, signature: Signature) -> None:
    """Refuse a function that looks as if it did something: it is never called."""
    if signature.flow == "async_generator":
        return
    from dis import get_instructions

    code = getattr(signature.function, "__code__", None)
    # `pass` and `...` behind a docstring leave a NOP.
    empty = {"NOP"} | {each.opname for one in (_declare, _declare_async) for each in get_instructions(one)}
    is_empty = code is None or {each.opname for each in get_instructions(code)} <= empty
    if signature.flow == "generator" or not is_empty:
        raise UsageError(
            f"event {name!r} has a body, and it would never run: the function only declares the event",
            where=signature.where,
            fix=f"leave only the docstring, and emit with `await ctx.emit_event({signature.name}, …)`; "
            "or yield events from an `async def … -> AsyncIterator[…]`",
        )


def _declare() -> None:
    """What a function without a body is compiled to, by this Python."""


async def _declare_async() -> None:
    """The same for `async def`."""


def _choose_delivery(
    name: str, options: EventTypeOptions, signature: Signature, available: Sequence[DeliveryMode]
) -> tuple[DeliveryMode, ...]:
    if options.delivery is None:
        return tuple(available)
    wanted = (options.delivery,) if isinstance(options.delivery, str) else tuple(options.delivery)
    for mode in wanted:
        if mode not in DELIVERY_MODES:
            raise UsageError(
                f"event {name!r}: delivery={mode!r} does not exist",
                where=signature.where,
                fix=f"use some of {', '.join(map(repr, DELIVERY_MODES))}",
            )
        if mode not in available:
            raise UsageError(
                f"event {name!r} is to be delivered by {mode}, which needs httpx2, and that is not installed",
                where=signature.where,
                fix='pip install "defserve[client]"',
            )
    if not wanted:
        raise UsageError(f"event {name!r} is delivered in no way", where=signature.where, fix='say delivery=["poll"]')
    return tuple(mode for mode in DELIVERY_MODES if mode in wanted)


# -- Whether an event is for a subscriber.


def matches_filter(wanted: Params, emitted: Params, *, is_exact: bool = False) -> bool:
    """Whether each argument that a subscriber gave is equal to the emitted one.

    What a source yields is only for those whose arguments are the same (`is_exact`): others have a source of their own.
    """
    if is_exact:
        return encode_canonical_json(wanted) == encode_canonical_json(_without_nulls(emitted))
    return all(
        name in emitted and _encode_value(value) == _encode_value(emitted[name]) for name, value in wanted.items()
    )


class FilterIndex(Generic[T]):
    """Finds those whose filter lets an event through, as `matches_filter` says, without looking at the others.

    Those who gave the same names lie together, by the values that they gave. So an event costs a look for each set of
    names that somebody gave, and nothing for those who wait for other values.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], dict[tuple[str | bytes, ...], dict[T, None]]] = {}

    def add(self, wanted: Params, subscriber: T) -> None:
        names, key = _make_filter_key(wanted)
        self._values.setdefault(names, {}).setdefault(key, {})[subscriber] = None

    def remove(self, wanted: Params, subscriber: T) -> None:
        """Raises KeyError if it was not added with this filter."""
        names, key = _make_filter_key(wanted)
        values = self._values[names]
        del values[key][subscriber]
        if not values[key]:
            del values[key]
        if not values:
            del self._values[names]

    def find(self, emitted: Params, *, is_exact: bool = False) -> list[T]:
        if is_exact:
            names, key = _make_filter_key(_without_nulls(emitted))
            return list(self._values.get(names, {}).get(key, ()))
        encoded, found = {name: _encode_value(value) for name, value in emitted.items()}, list[T]()
        for names, values in self._values.items():
            if all(name in encoded for name in names):
                found += values.get(tuple(encoded[name] for name in names), ())
        return found


def _make_filter_key(wanted: Params) -> tuple[tuple[str, ...], tuple[str | bytes, ...]]:
    names = tuple(sorted(wanted))
    return names, tuple(_encode_value(wanted[name]) for name in names)


def _encode_value(value: Any) -> str | bytes:
    """What is equal for the same JSON. Most values are texts, and are left as they are."""
    return value if isinstance(value, str) else encode_canonical_json(value)


def encode_canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values: 1 and true differ, the order of members does not."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _without_nulls(values: Params) -> Params:
    return {name: value for name, value in values.items() if value is not None}


# -- What a request says of an event.


def read_filter(event: EventType, params: Params) -> Params:
    """The arguments of a request. Raises InvalidParams for those that do not fit."""
    try:
        return event.parse_filter(read_optional_object_param(params, "arguments"))
    except BadArguments as error:
        raise InvalidParams(f"Invalid params: {error}") from None
    except LimitExceeded as error:
        raise InvalidParams(f"Invalid params: {error.message}", data=error.data) from None


def read_non_negative_param(params: Params, name: str) -> int | None:
    """A number of a request that is not negative; None if it is left out."""
    value: Any = params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        raise InvalidParams(f"Invalid params: {name} must be a number that is not negative")
    return int(value)
