from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from defserve import Depends, Server, UsageError
from tests.raw import ERAS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def real() -> str:
    return "real"


def shop() -> tuple[Server, list[str]]:
    """A server whose functions depend on `real`: one directly, others through a dependency between."""
    server, closed = Server("shop"), list[str]()

    async def between(name: Annotated[str, Depends(real)]) -> AsyncIterator[str]:
        yield f"<{name}>"
        closed.append(name)

    @server.tool
    def direct(name: Annotated[str, Depends(real)]) -> str:
        return name

    @server.tool(inline=True)
    def nested(name: Annotated[str, Depends(between)], same: Annotated[str, Depends(real)]) -> str:
        return f"{name}{same}"

    @server.resource("shop://name")
    def name(name: Annotated[str, Depends(real)]) -> str:
        return name

    @server.prompt
    def greet(name: Annotated[str, Depends(real)]) -> str:
        return name

    return server, closed


async def an_async_function() -> str:
    return "fake"


def a_generator() -> Iterator[str]:
    yield "fake"


async def an_async_generator() -> AsyncIterator[str]:
    yield "fake"


def one_with_a_dependency(name: Annotated[str, Depends(an_async_function)]) -> str:
    return name


FAKES: list[Any] = [lambda: "fake", an_async_function, a_generator, an_async_generator, one_with_a_dependency]


@for_each_row(("era", "fake"), [(era, fake) for era in ERAS for fake in FAKES])
async def test_every_function_that_depends_on_it_gets_the_replacement_and_afterwards_the_real_one(era: str, fake: Any):
    server, closed = shop()
    async with server.connect(era) as client:
        with server.override(real, fake):
            assert await client.call("direct") == "fake"
            assert await client.call("nested") == "<fake>fake"
            assert await client.read_text("shop://name") == "fake"
            assert "fake" in str(await client.prompt("greet"))
        assert await client.call("direct") == "real"
        assert await client.call("nested") == "<real>real"
        assert closed == ["fake", "real"]


async def test_it_counts_before_anybody_has_connected_and_ends_with_undo():
    server, _ = shop()
    override = server.override(real, lambda: "fake")
    assert repr(override) == "Override(real by <lambda>)"
    async with server.connect() as client:
        assert await client.call("direct") == "fake"
        override.undo()
        override.undo()
        assert await client.call("direct") == "real"


async def test_the_inner_one_of_two_counts_and_the_outer_one_comes_back():
    server, _ = shop()
    async with server.connect() as client:
        with server.override(real, lambda: "outer"):
            with pytest.raises(ZeroDivisionError), server.override(real, lambda: "inner"):
                assert await client.call("direct") == "inner"
                raise ZeroDivisionError
            assert await client.call("direct") == "outer"


async def test_a_replacement_may_depend_on_what_it_replaces():
    server, _ = shop()

    def louder(name: Annotated[str, Depends(real)]) -> str:
        return name.upper()

    with server.override(real, louder):
        async with server.connect() as client:
            assert await client.call("direct") == "REAL"


async def test_functions_that_replace_each_other_end():
    server, _ = shop()

    def other(name: Annotated[str, Depends(real)]) -> str:
        return f"other {name}"

    def fake(name: Annotated[str, Depends(other)]) -> str:
        return f"fake {name}"

    with server.override(real, fake), server.override(other, lambda: "no other"):
        async with server.connect() as client:
            assert await client.call("direct") == "fake no other"


async def test_a_class_is_replaced_by_another():
    server = Server("classes")

    class Settings:
        name = "real"

    class Fake(Settings):
        name = "fake"

    @server.tool
    def name(settings: Annotated[Settings, Depends()]) -> str:
        return settings.name

    with server.override(Settings, Fake):
        async with server.connect() as client:
            assert await client.call("name") == "fake"


async def test_mounted_servers_take_part():
    child, _ = shop()
    server = Server("parent")
    server.mount(child, prefix="shop")
    with server.override(real, lambda: "fake"):
        async with server.connect() as client:
            assert await client.call("shop_direct") == "fake"


async def test_another_server_does_not_take_part():
    (one, _), (other, _) = shop(), shop()
    with one.override(real, lambda: "fake"):
        async with other.connect() as client:
            assert await client.call("direct") == "real"


@for_each_row(("dependency", "replacement"), [(real, "fake"), ("real", real), (real, lambda peer: peer)])
def test_what_cannot_be_called_is_refused_at_once(dependency: Any, replacement: Any):
    server, _ = shop()
    with pytest.raises(UsageError):
        server.override(dependency, replacement)


def test_whoever_comes_from_fastapi_is_told_its_name():
    with pytest.raises(AttributeError, match=r"server\.override\(open_db, fake_db\)"):
        _ = Server("x").dependency_overrides  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
