"""A guarded type beside one that takes any text: what the guard refuses reaches the function by no branch."""

from __future__ import annotations

import dataclasses
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    RootModel,
    SecretStr,
    create_model,
)
from typing_extensions import TypeAliasType, TypedDict

from defserve import PublicUrl, Server, ShellCommand, UsageError
from defserve.errors import BadArguments, DefserveError
from defserve.guard.argument_types import Code, Within
from tests.effort import examples
from tests.rows import for_each_row

PRIVATE = "http://127.0.0.1/admin"
T = TypeVar("T")


class Guarded(BaseModel):
    url: PublicUrl


class Plain(BaseModel):
    url: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class OfAny(BaseModel, Generic[T]):
    url: T


class Named(NamedTuple):
    url: PublicUrl


class PlainNamed(NamedTuple):
    url: str


class Typed(TypedDict):
    url: PublicUrl


class PlainTyped(TypedDict):
    url: str


@dataclasses.dataclass
class Record:
    url: PublicUrl


@dataclasses.dataclass
class PlainRecord:
    url: str


class Aliased(BaseModel):
    address: Annotated[str, Field(validation_alias="url")]


class Fetch(BaseModel):
    kind: Literal["fetch"]
    url: PublicUrl


class Note(BaseModel):
    kind: Literal["note"]
    url: str


class Other(BaseModel):
    text: str


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str


class Tree(BaseModel):
    below: list[Tree] | list[PublicUrl] | None = None


class OpenTree(BaseModel):
    below: list[OpenTree] | list[PublicUrl] | list[str] | None = None


Alias = TypeAliasType("Alias", PublicUrl | str)
Once = NewType("Once", str)


def taking(annotation: Any) -> Any:
    """The arguments of a tool with one parameter of this type. Raises UsageError."""
    server = Server("t")

    def f(given: Any) -> str:
        return ""

    f.__annotations__ = {"given": annotation, "return": str}
    server.tool(f)
    tool = server.mcp.tools.registry.get("f")
    assert tool is not None
    return tool.function.arguments


@for_each_row(
    "annotation",
    [
        list | list[PublicUrl],
        str | RootModel[PublicUrl],
        list[Any] | tuple[PublicUrl, ...],
        Sequence[PublicUrl] | list[str],
        set[PublicUrl] | deque[str],
        frozenset[PublicUrl] | tuple[str, ...],
        tuple[int, PublicUrl] | tuple[int, str],
        tuple[int, PublicUrl] | list[int | str],
        tuple[PublicUrl, ...] | tuple[str, str],
        dict[str, PublicUrl] | dict[str, str],
        dict[str, PublicUrl] | Mapping[str, Any],
        dict[PublicUrl, int] | dict[str, int],
        dict[str, PublicUrl] | Plain,
        Guarded | dict[str, str],
        Guarded | Plain,
        Guarded | Open,
        Guarded | OfAny[str],
        Guarded | Aliased,
        OfAny[PublicUrl] | OfAny[str],
        Typed | PlainTyped,
        Record | PlainRecord,
        Named | PlainNamed,
        Named | list[str],
        list[PublicUrl] | PlainNamed,
        Guarded | PlainTyped,
        PublicUrl | Once,
        PublicUrl | Path,
        PublicUrl | AnyUrl,
        PublicUrl | SecretStr,
        PublicUrl | bytes,
        PublicUrl | object,
        PublicUrl | Json,
        str | Json[PublicUrl],
        Annotated[PublicUrl, BeforeValidator(str)] | list[str],
        PublicUrl | Annotated[int, BeforeValidator(lambda text: text)],
        Alias,
        list[Alias],
        OpenTree,
        list[list[PublicUrl] | list[Any]],
        ShellCommand | str,
        list[ShellCommand] | list[Any],
        Annotated[Path, Within("/srv")] | Path,
        Annotated[str, Code()] | str,
        list[Annotated[str, Code()]] | list,
        Annotated[Fetch | Plain, Field(union_mode="left_to_right")],
    ],
)
def test_a_branch_that_accepts_what_another_judges_is_refused(annotation: Any):
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        taking(annotation)


def test_prompts_and_resources_refuse_it_too():
    server = Server("reader")

    def read(url: PublicUrl | str) -> str:
        return str(url)

    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        server.add_prompt(read)
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        server.add_resource(read, "page://{url}")


@for_each_row(
    "annotation",
    [
        PublicUrl | None,
        PublicUrl | int,
        PublicUrl | Literal["none"],
        PublicUrl | list[str],
        list[PublicUrl] | str,
        list[PublicUrl] | dict[str, str],
        tuple[PublicUrl] | tuple[str, str],
        Fetch | Note,
        Annotated[Fetch | Note, Discriminator("kind")],
        Guarded | Other,
        Guarded | Strict,
        list[Fetch] | list[Note],
        dict[str, PublicUrl] | dict[str, int],
        Tree,
    ],
)
def test_branches_that_share_no_text_stay_possible(annotation: Any):
    assert taking(annotation).schema


@for_each_row(
    ("annotation", "given"),
    [
        (Iterable[PublicUrl], [PRIVATE]),
        (list[Iterable[PublicUrl]], [[PRIVATE]]),
        (OfAny[Iterable[PublicUrl]], {"url": [PRIVATE]}),
    ],
)
def test_a_guard_in_an_iterable_judges_before_the_function_runs(annotation: Any, given: Any):
    with pytest.raises(DefserveError, match="URL refused"):
        taking(annotation).validate({"given": given})


def test_a_guard_beside_a_schema_of_the_authors_own_is_refused_as_nothing_would_judge():
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}

    def fetch(url: PublicUrl) -> str:
        return url

    with pytest.raises(UsageError, match="a guarded type judges nothing beside schema="):
        Server("t").tool(schema=schema)(fetch)


Wrap = tuple[list[Any], Any]
"""Ways to put a type into another that read the same JSON, and what makes that JSON of the inner value."""


def _model(inner: Any) -> Any:
    return create_model("Made", at=(inner, ...))


def _typed(inner: Any) -> Any:
    return types.new_class("Typed", (TypedDict,), {}, lambda body: body.update(__annotations__={"at": inner}))  # pyright: ignore


def _named(inner: Any) -> Any:
    return NamedTuple("Made", [("at", inner)])  # pyright: ignore


def _record(inner: Any) -> Any:
    return dataclasses.make_dataclass("Made", [("at", inner)])


WRAPS: list[Wrap] = [
    (
        [
            lambda t: list[t],
            lambda t: Sequence[t],
            lambda t: tuple[t, ...],
            lambda t: tuple[t],
            lambda t: deque[t],
            lambda t: list[t | None],
            lambda t: RootModel[list[t]],
            lambda t: TypeAliasType("Listed", list[t]),
            _named,
        ],
        lambda value: [value],
    ),
    (
        [
            lambda t: dict[str, t],
            lambda t: Mapping[str, t],
            lambda t: dict[Literal["at"], t],
            lambda t: OfAny[t],
            _model,
            _typed,
            _record,
        ],
        lambda value: {"at": value, "url": value},
    ),
    ([lambda t: RootModel[t], lambda t: Annotated[t, "said"], lambda t: t | int | None], lambda value: value),
]
TEXTS: list[Any] = [
    *(str, Any, object, bytes, Path, AnyUrl, SecretStr, Once, RootModel[str], Annotated[str, Field(max_length=99)]),
    *(Annotated[str, BeforeValidator(lambda text: text)], str | None, list | str, dict[str, Any] | str, str | int),
]
BARE: list[Any] = [Any, object, list, dict, tuple, list[Any], dict[str, Any], Open]


@st.composite
def unions(draw: st.DrawFn) -> tuple[Any, Any]:
    """A union of a guarded type with one of the same shape that takes text, and a private URL in that shape."""
    guarded: Any = draw(st.sampled_from([PublicUrl, Annotated[PublicUrl, "said"], PublicUrl | None]))
    plain: Any = draw(st.sampled_from(TEXTS))
    value: Any = PRIVATE
    for _ in range(draw(st.integers(0, 3))):
        ways, put = draw(st.sampled_from(WRAPS))
        guarded, plain, value = draw(st.sampled_from(ways))(guarded), draw(st.sampled_from(ways))(plain), put(value)
        plain = draw(st.sampled_from([plain, plain, *BARE]))
    branches = draw(st.permutations([guarded, plain, *draw(st.sampled_from([(), (int,), (None,)]))]))
    return Union[tuple(branches)], value  # noqa: UP007


def _texts(value: Any) -> str:
    return repr(value if not isinstance(value, SecretStr) else value.get_secret_value())


@settings(max_examples=examples(100), deadline=None)
@given(unions())
def test_a_private_url_never_reaches_the_function_unjudged(union: tuple[Any, Any]):
    annotation, value = union
    try:
        arguments = taking(annotation)
    except UsageError:
        return
    try:
        reached = arguments.validate({"given": value})
    except (DefserveError, BadArguments):
        return
    assert "127.0.0.1" not in _texts(reached), annotation
