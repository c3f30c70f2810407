"""Children as backends, and waiting for what happens in them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from defserve import Command
from defserve.client import Client
from tests.effort import slow
from tests.forking.spawning import quick_arguments
from tests.waiting import DEADLINE

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ERAS = ("handshake", "stateless")
# The era of a client and that of a backend: by default those that differ.
ERA_PAIRS = [
    ("handshake", "stateless"),
    ("stateless", "handshake"),
    slow(pytest.param("handshake", "handshake")),
    slow(pytest.param("stateless", "stateless")),
]

Hears: TypeAlias = Callable[[str, dict[str, Any]], None]


def hearing(heard: list[Any], member: str | None = None) -> Hears:
    """Keeps the method of each notification, or one member of its params."""
    return lambda method, params: heard.append(params.get(member) if member else method)


async def until_fact(client: Client, name: str) -> None:
    """Wait until something has happened in the backend of a client."""
    async with asyncio.timeout(DEADLINE):
        while not await client.call("e_fact", name=name):  # noqa: ASYNC110 (it happens in another process)
            await asyncio.sleep(0.01)


async def until_listed(client: Client, name: str) -> None:
    """Wait until a tool is offered."""
    async with asyncio.timeout(DEADLINE):
        while name not in [tool["name"] for tool in await client.tools()]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def child(*words: str, is_forked: bool = True, **options: Any) -> Command:
    """A Python program as a backend: the path of a script, from this folder, or options of Python; with arguments.

    A forked one starts at once, but it does not have the process id that the front knows.
    """
    env = {"PYTHONPATH": str(ROOT), **options.pop("env", {})}
    script, *arguments = words or ("everything.py",)
    if script.startswith("-"):
        given: Sequence[str] = words
    else:
        given = quick_arguments(HERE / script, arguments) if is_forked else (str(HERE / script), *arguments)
    return Command(sys.executable, *given, env=env, **options)
