"""Dependencies: planned at registration, resolved once a call, torn down whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from threading import Event, get_ident
from typing import Annotated, Any

import pytest

from defserve.binding.injection import Depends, InjectionPlan
from defserve.binding.signature import read_signature
from defserve.errors import UsageError

LOG: list[Any] = []


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    LOG.clear()


class Context:
    pass


class Call:
    """A call with one thread that counts what it ran there."""

    def __init__(self) -> None:
        self.in_threads = 0
        self.thread = ThreadPoolExecutor(1)

    async def in_thread(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        self.in_threads += 1
        return await asyncio.get_running_loop().run_in_executor(self.thread, fn, *args)

    async def clean_up_in_thread(self, fn: Callable[[], None], /) -> None:
        await self.in_thread(fn)


def find_provider(annotation: Any) -> Callable[[Any], Any] | None:
    return (lambda call: call) if annotation is Context else None


def plan(function: Any) -> InjectionPlan:
    made = InjectionPlan.from_parameters(read_signature(function, find_provider).injected)
    assert made is not None
    return made


async def resolved(function: Any, call: Any = None, body: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    made, call = plan(function), call or Call()
    async with AsyncExitStack() as stack:
        await made.resolve(call, stack, kwargs, made.call_dependency_providers(call))
        result = body()
        if asyncio.iscoroutine(result):
            await result
    return kwargs


def plain() -> str:
    LOG.append("plain")
    return "plain"


async def awaited() -> str:
    return "awaited"


def opened() -> Iterator[str]:
    LOG.append("open")
    try:
        yield "opened"
    except BaseException as error:
        LOG.append(type(error))
        raise
    finally:
        LOG.append("close")


async def opened_async() -> AsyncIterator[str]:
    LOG.append("open async")
    try:
        yield "opened async"
    except BaseException as error:
        LOG.append(type(error))
        raise
    finally:
        LOG.append("close async")


class Service:
    def __init__(self, name: Annotated[str, Depends(plain)], size: int = 3) -> None:
        self.name, self.size = name, size


class Factory:
    async def __call__(self) -> str:
        return "made"


def test_nothing_injected_is_no_plan() -> None:
    def tool(a: int) -> None: ...

    assert InjectionPlan.from_parameters(read_signature(tool, find_provider).injected) is None


def test_what_needs_no_await_is_direct() -> None:
    def tool(ctx: Context) -> None: ...

    made = plan(tool)
    assert not made.dependencies
    assert [(name, provider("call")) for name, provider in made.direct] == [("ctx", "call")]


@pytest.mark.parametrize(
    ("function", "value"),
    [(plain, "plain"), (awaited, "awaited"), (opened, "opened"), (opened_async, "opened async"), (Factory(), "made")],
)
def test_every_kind_of_function_provides(function: Any, value: str) -> None:
    def tool(a: int, got): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["got"] = Annotated[str, Depends(function)]
    assert plan(tool).dependencies
    assert asyncio.run(resolved(tool)) == {"got": value}


def test_a_class_depends_on_its_constructor() -> None:
    def tool(one: Annotated[Service, Depends()], two: Annotated[Service, Depends(Service)]) -> None: ...

    found = asyncio.run(resolved(tool))
    assert (found["one"].name, found["one"].size) == ("plain", 3)
    assert found["one"] is found["two"]


def test_a_default_may_be_the_dependency() -> None:
    def tool(got: str = Depends(plain)) -> None: ...

    assert asyncio.run(resolved(tool)) == {"got": "plain"}


def test_a_dependency_takes_the_context_and_other_dependencies() -> None:
    def outer(ctx: Context, inner: Annotated[str, Depends(awaited)], size: int = 2, *rest: int) -> tuple[Any, ...]:
        return ctx, inner, size

    def tool(got: Annotated[Any, Depends(outer)]) -> None: ...

    call = Call()
    assert asyncio.run(resolved(tool, call)) == {"got": (call, "awaited", 2)}


def test_each_is_resolved_once_a_call_unless_it_says_otherwise() -> None:
    def outer(a: Annotated[str, Depends(plain)]) -> str:
        return a

    def tool(
        a: Annotated[str, Depends(outer)],
        b: Annotated[str, Depends(plain)],
        c: Annotated[str, Depends(plain, use_cache=False)],
    ) -> None: ...

    asyncio.run(resolved(tool))
    assert LOG == ["plain", "plain"]


def test_blocking_code_runs_in_a_thread() -> None:
    def identity() -> int:
        return get_ident()

    def tool(
        a: Annotated[int, Depends(identity)],
        b: Annotated[str, Depends(opened)],
        c: Annotated[str, Depends(awaited)],
        d: Annotated[str, Depends(opened_async)],
    ) -> None: ...

    call = Call()
    assert asyncio.run(resolved(tool, call))["a"] != get_ident()
    assert call.in_threads == 3  # identity, and opening and closing of `opened`


def both(a: Annotated[str, Depends(opened)], b: Annotated[str, Depends(opened_async)]) -> None: ...


def test_teardown_runs_in_reverse_after_success() -> None:
    asyncio.run(resolved(both, body=lambda: LOG.append("body")))
    assert LOG == ["open", "open async", "body", "close async", "close"]


def test_teardown_sees_the_failure_and_cannot_hide_it() -> None:
    def fail() -> None:
        raise KeyError("k")

    def swallows() -> Iterator[str]:
        try:
            yield "x"
        except KeyError:
            LOG.append("swallowed")

    async def swallows_async() -> AsyncIterator[str]:
        try:
            yield "x"
        except KeyError:
            LOG.append("swallowed async")

    def tool(a: Annotated[str, Depends(swallows)], b: Annotated[str, Depends(swallows_async)]) -> None: ...

    with pytest.raises(KeyError):
        asyncio.run(resolved(both, body=fail))
    assert ["open", "open async", KeyError, "close async", KeyError, "close"] == LOG
    LOG.clear()
    with pytest.raises(KeyError):
        asyncio.run(resolved(tool, body=fail))
    assert LOG == ["swallowed async", "swallowed"]


def test_teardown_runs_on_cancellation() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def wait_for_ever() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(resolved(both, body=wait_for_ever))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [
        *("open", "open async"),
        *(asyncio.CancelledError, "close async"),
        *(asyncio.CancelledError, "close"),
    ] == LOG


def test_teardown_waits_for_an_opening_that_was_cancelled() -> None:
    entered, go_on = Event(), Event()

    def slow() -> Iterator[str]:
        entered.set()
        assert go_on.wait(30)
        try:
            yield "slow"
        finally:
            LOG.append("close")

    def tool(a: Annotated[str, Depends(slow)]) -> None: ...

    async def main() -> None:
        task = asyncio.create_task(resolved(tool))
        await asyncio.to_thread(entered.wait, 5)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert LOG == ["close"]


def test_what_was_opened_is_closed_when_a_later_dependency_fails() -> None:
    async def fails() -> str:
        raise LookupError

    def tool(a: Annotated[str, Depends(opened)], b: Annotated[str, Depends(fails)]) -> None: ...

    with pytest.raises(LookupError):
        asyncio.run(resolved(tool))
    assert ["open", LookupError, "close"] == LOG


def chicken(egg: Annotated[str, Depends(egg_layer)]) -> str: ...  # type: ignore[empty-body]
def egg_layer(hen: Annotated[str, Depends(chicken)]) -> str: ...  # type: ignore[empty-body]
def selfish(me: Annotated[str, Depends(selfish)]) -> str: ...  # type: ignore[empty-body]
def needy(what: str) -> str: ...  # type: ignore[empty-body]
def untyped(what): ...  # type: ignore[no-untyped-def]


@dataclass
class Settings:
    """Equal to others with the same values, so Python gives it no hash."""

    url: str = "a"

    def __call__(self) -> str:
        return self.url


@dataclass(frozen=True)
class Tags:
    """Its hash is made of its values, and a list has none."""

    names: list[str]

    def __call__(self) -> str:
        return ",".join(self.names)


@pytest.mark.parametrize(
    ("dependency", "problem"),
    [
        (chicken, "circle: chicken → egg_layer → chicken"),
        (selfish, "circle: selfish → selfish"),
        (needy, "needy: dependency parameter 'what' can neither be injected nor left out"),
        (untyped, "untyped: dependency parameter 'what' can neither be injected nor left out"),
        ("text", "which is not callable"),
        (Settings(), "depends on Settings, which cannot be hashed"),
        (Tags(["a"]), "depends on Tags, which cannot be hashed"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_at_registration(dependency: Any, problem: str) -> None:
    def tool(a): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["a"] = Annotated[str, Depends(dependency)]
    with pytest.raises(UsageError, match=problem) as caught:
        read_signature(tool, find_provider)
    assert caught.value.fix and "test_injection.py" in caught.value.where


@pytest.mark.parametrize("dependency", [Settings("b"), Tags(["b"])])
def test_what_has_no_hash_provides_if_it_is_called_each_time(dependency: Any) -> None:
    def tool(url): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["url"] = Annotated[str, Depends(dependency, use_cache=False)]
    assert asyncio.run(resolved(tool)) == {"url": "b"}
    made = plan(tool).with_overrides({plain: plan(tool).dependencies[0][1]})
    assert made.dependencies[0][1].function == dependency
