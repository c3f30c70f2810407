"""What is read of a function, and what is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field
from typing_extensions import Doc

from defserve.binding.signature import empty, read_signature
from defserve.errors import UsageError
from tests.rows import for_each_row

if TYPE_CHECKING:
    from elsewhere import Hidden  # type: ignore[import-not-found]


class Context:
    pass


def find_provider(annotation: Any) -> Callable[[Any], Any] | None:
    return (lambda call: ("context of", call)) if annotation is Context else None


def names(function: Any) -> list[str]:
    return [parameter.name for parameter in read_signature(function, find_provider).parameters]


def test_parameters_keep_their_resolved_types_and_defaults() -> None:
    def tool(a: int, b: Annotated[str, "doc"] = "x", *, c: list[int] | None = None) -> float: ...

    signature = read_signature(tool, find_provider)
    assert [(p.name, p.annotation, p.default) for p in signature.parameters] == [
        ("a", int, empty),
        ("b", Annotated[str, "doc"], "x"),
        ("c", list[int] | None, None),
    ]
    assert signature.returns is float
    assert signature.name == "tool"


def test_a_type_defined_in_the_enclosing_function_is_found() -> None:
    class Local:
        pass

    def tool(a: list[Local]) -> None: ...

    assert read_signature(tool, find_provider).parameters[0].annotation == list[Local]


def test_context_is_injected_and_not_a_parameter() -> None:
    def tool(a: int, ctx: Context, maybe: Context | None = None) -> None: ...

    signature = read_signature(tool, find_provider)
    assert [p.name for p in signature.parameters] == ["a"]
    assert [i.name for i in signature.injected] == ["ctx", "maybe"]
    assert signature.injected[0].provider("this call") == ("context of", "this call")  # type: ignore[operator]


def test_where_is_relative_to_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tool() -> None: ...

    line = tool.__code__.co_firstlineno
    monkeypatch.chdir(Path(__file__).parent)
    assert read_signature(tool, find_provider).where == f"test_signature.py:{line}"
    monkeypatch.chdir(tmp_path)
    assert read_signature(tool, find_provider).where == f"{__file__}:{line}"


class TestDescriptions:
    """The annotation speaks first, then the docstring."""

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[int, Field(description="the count")],
            Annotated[int, "the count"],
            Annotated[int, Doc("the count")],
        ],
    )
    def test_the_annotation_describes(self, annotation: Any) -> None:
        def tool(a): ...  # type: ignore[no-untyped-def]

        tool.__annotations__["a"] = annotation
        tool.__doc__ = "Do.\n\nArgs:\n    a: something else\n"
        assert read_signature(tool, find_provider).parameters[0].description == "the count"

    def test_the_docstring_describes_what_the_annotation_does_not(self) -> None:
        def tool(a: int, b: int) -> None:
            """Do it.

            Args:
                a: The first,
                    on two lines.
            """

        signature = read_signature(tool, find_provider)
        assert [p.description for p in signature.parameters] == ["The first, on two lines.", None]
        assert signature.description == "Do it."

    def test_a_default_of_Field_describes_and_defaults(self) -> None:
        def tool(a: int = Field(description="the count"), b: int = Field(3, alias="bee")) -> None: ...

        a, b = read_signature(tool, find_provider).parameters
        assert (a.description, a.required) == ("the count", True)
        assert (b.default, b.required, b.wire_name) == (3, False, "bee")


async def coroutine() -> None: ...
async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


def plain() -> None: ...
def returns_awaitable() -> Awaitable[int]: ...  # type: ignore[empty-body]
def returns_iterator() -> Iterator[int]: ...  # type: ignore[empty-body]


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Caller:
    """Calls."""

    async def __call__(self, a: int) -> str:
        return str(a)

    def method(self, a: int) -> str:
        return str(a)

    @staticmethod
    def static(a: int) -> str:
        return str(a)

    @classmethod
    def of_class(cls, a: int) -> str:
        return str(a)


@for_each_row(
    ("function", "flow"),
    [
        (plain, "sync"),
        (coroutine, "async"),
        (generator, "generator"),
        (asynchronous_generator, "async_generator"),
        (returns_awaitable, "async"),
        (returns_iterator, "generator"),
        (wrapped(plain), "sync"),
        (wrapped(coroutine), "async"),
        (functools.partial(coroutine), "async"),
        (Caller(), "async"),
        (Caller().method, "sync"),
    ],
)
def test_flow_says_how_a_function_answers(function: Any, flow: str) -> None:
    assert read_signature(function, find_provider).flow == flow


@for_each_row(
    ("function", "name"),
    [
        (Caller(), "Caller"),
        (Caller().method, "method"),
        (Caller.static, "static"),
        (Caller.of_class, "of_class"),
        (functools.partial(Caller.static), "static"),
        (wrapped(Caller.static), "static"),
    ],
)
def test_callables_of_every_kind_are_read(function: Any, name: str) -> None:
    signature = read_signature(function, find_provider)
    assert signature.name == name
    assert [p.name for p in signature.parameters] == ["a"]
    assert signature.returns is str


def test_what_a_partial_was_given_is_no_parameter() -> None:
    def tool(secret: str, a: int, b: int) -> None: ...

    assert names(functools.partial(tool, "s", a=1)) == ["b"]


def test_a_class_returns_itself() -> None:
    class Point:
        def __init__(self, x: int) -> None: ...

    signature = read_signature(Point, find_provider)
    assert ([p.name for p in signature.parameters], signature.returns) == (["x"], Point)


def positional_only(a: int, /) -> None: ...
def star(*items: int) -> None: ...
def double_star(**options: int) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def unresolved(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def type_checking_only(a: Hidden) -> None: ...
def loose_self(self, a: int) -> None: ...  # type: ignore[no-untyped-def]


@for_each_row(
    ("function", "problem", "fix"),
    [
        (positional_only, "parameter 'a' is positional-only", "remove the `/`"),
        (star, "parameter '*items'", "name each parameter"),
        (double_star, "parameter '**options'", "name each parameter"),
        (untyped, "parameter 'a' has no type", "`a: str`"),
        (unresolved, "names 'Missing'", "define 'Missing' at module level"),
        (type_checking_only, "names 'Hidden'", "TYPE_CHECKING"),
        (Caller.method, "not bound", "server.tool(obj.method)"),
        (loose_self, "not bound", "register the bound method: server.tool(obj.loose_self)"),
        (lambda: None, "lambda", "write a def"),
        (vars, "no signature", "wrap it in a def"),
        (Caller.__dict__["of_class"], "unbound classmethod", "after the class body"),
    ],
)
def test_what_cannot_be_called_from_json_is_refused(function: Any, problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_signature(function, find_provider)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    if hasattr(function, "__code__"):
        assert caught.value.where.endswith(f"test_signature.py:{function.__code__.co_firstlineno}")
        assert "test_signature.py" in str(caught.value)


def test_a_decorator_without_wraps_is_explained() -> None:
    def decorated(*args: Any, **kwargs: Any) -> None: ...

    with pytest.raises(UsageError, match="functools.wraps"):
        read_signature(decorated, find_provider)


def test_a_plain_docstring_does_not_import_docstring_parser() -> None:
    code = """
import sys
from defserve.binding.signature import read_signature
def tool(a: int) -> int:
    '''Add one.

    A second paragraph: with a colon.
    '''
signature = read_signature(tool, lambda annotation: None)
assert signature.description.startswith("Add one.") and signature.parameters[0].description is None
assert "docstring_parser" not in sys.modules and "pydantic" not in sys.modules
def tool(a: int) -> int:
    '''Add one.

    Args:
        a: The one.
    '''
signature = read_signature(tool, lambda annotation: None)
assert signature.description == "Add one." and "docstring_parser" not in sys.modules
assert signature.parameters[0].description == "The one." and "docstring_parser" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
