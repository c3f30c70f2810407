# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Never run, only type-checked: every decorator gives back the function it was given, type and all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Annotated, Any, Literal, assert_type

from defserve import Context, Depends, Server, prompt, resource, tool
from defserve.live import Channel, FinishedTurn, Injection, Rewrite, Turn

server = Server("typing")


def open_db() -> Iterator[dict[str, int]]:
    yield {}


# bare, on a server
@server.tool
def add(a: int, b: int = 0) -> int:
    return a + b


# called, with options
@server.tool(timeout=3)
def shout(text: str) -> str:
    return text.upper()


# asynchronous, with the context
@server.tool
async def fetch(url: str, ctx: Context) -> bytes:
    return url.encode()


# a stream
@server.tool(timeout=3)
async def count(to: int) -> AsyncIterator[str]:
    for number in range(to):
        yield str(number)


# free marks, bare and called
@tool
def free(a: int) -> list[int]:
    return [a]


@tool(title="Called")
def free_called(kind: Literal["x", "y"]) -> Literal["x", "y"]:
    return kind


@server.resource("notes://{id}")
def note(id: int) -> str:
    return str(id)


@resource("notes://all")
async def notes() -> list[str]:
    return []


@server.prompt
def review(code: str) -> str:
    return code


@prompt(title="Called")
def greet(name: str) -> str:
    return name


# an injected parameter keeps the type it is annotated with
@server.tool
def lookup(key: str, db: Annotated[dict[str, int], Depends(open_db)]) -> int:
    assert_type(db, dict[str, int])
    return db[key]


@server.tool
def find(key: str, db: dict[str, int] = Depends(open_db)) -> int:
    assert_type(db, dict[str, int])
    return db[key]


# verbs of a feature set, bare and called
live = server.feature_set("live", "Takes part", scoped=True)


@live.tool
def tied(a: int) -> int:
    return a


def place(path: str) -> str:
    return path


@live.tool(scope=place)
async def edit(path: str) -> bytes:
    return b""


@live.before_inference
async def recall(turn: Turn) -> Injection | None:
    return Injection(turn.user_message or "")


@live.after_inference(blocking=True)
def redact(turn: FinishedTurn) -> Rewrite:
    return Rewrite(turn.assistant_message)


rooms = server.channels("chat", feature_set=live)


@rooms.open
async def join(address: dict[str, str]) -> Channel:
    return Channel(address["room"])


@rooms.publish(timeout=5)
def send(channel: Channel, text: str) -> str:
    return text


joining: Callable[[dict[str, str]], Coroutine[Any, Any, Channel]] = join
assert_type(send(Channel("a"), "b"), str)

assert_type(tied(1), int)
editing: Callable[[str], Coroutine[Any, Any, bytes]] = edit
recalling: Callable[[Turn], Coroutine[Any, Any, Injection | None]] = recall
redacting: Callable[[FinishedTurn], Rewrite] = redact

assert_type(add(1), int)
assert_type(add(a=1, b=2), int)
assert_type(shout("x"), str)
assert_type(count(3), AsyncIterator[str])
assert_type(free(1), list[int])
assert_type(free_called("x"), Literal["x", "y"])
assert_type(note(1), str)
assert_type(review("x"), str)
assert_type(greet("x"), str)
assert_type(lookup("x", {}), int)

fetching: Callable[[str, Context], Coroutine[Any, Any, bytes]] = fetch
listing: Callable[[], Coroutine[Any, Any, list[str]]] = notes

# A wrong call stays wrong: an ignore that nothing needs is itself an error here.
add("1")  # pyright: ignore[reportArgumentType]
shout()  # pyright: ignore[reportCallIssue]
note(id="1")  # pyright: ignore[reportArgumentType]
free_called("z")  # pyright: ignore[reportArgumentType]
lookup("x", 3)  # pyright: ignore[reportArgumentType]
