"""Extras are small, and each is named for what one does with it."""

from __future__ import annotations

import re
import tomllib

from .artifacts import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
# What one does with it. `all` is the sum of them.
TASKS = {
    "http": "serve over HTTP and WebSocket",
    "client": "call other servers and APIs over HTTP, and keep their tokens",
    "auth": "verify signatures of issuers, and sign for them",
    "redis": "share state and sessions between processes",
    "postgres": "share state between processes, in the database that a company has",
    "sandbox": "run code of strangers",
    "semantic": "find tools by meaning",
    "telemetry": "send traces, metrics and audit logs to a collector",
    "dev": "make, reload, migrate and package projects",
}
MOST = 6


def names(extra: str) -> set[str]:
    return {re.split(r"[\[<>=;! ]", requirement)[0] for requirement in EXTRAS[extra]}


def test_each_extra_has_a_task() -> None:
    assert set(EXTRAS) - {"all"} == set(TASKS)


def test_each_extra_is_small() -> None:
    assert {extra: len(names(extra)) for extra in TASKS if len(names(extra)) > MOST} == {}


def test_all_is_the_sum_of_them() -> None:
    (requirement,) = EXTRAS["all"]
    assert set(re.findall(r"\w+", requirement.partition("[")[2])) == set(TASKS)
