"""A verb of a kernel is a row and a function: socket, command line and inspector know it from that."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from defserve.cli.commands.kernel import main
from defserve.cli.kernel_actions import SHOWN_BY
from defserve.errors import UsageError
from defserve.inspector.kernels import KernelOverSocket, list_verb_buttons
from defserve.kernel.control import (
    KERNEL_VERBS,
    VERB_GROUPS,
    KernelVerb,
    VerbParameter,
    ask_kernel,
    open_control_socket,
    parse_verb_request,
)

pytestmark = pytest.mark.anyio

GREET = KernelVerb(
    "greet",
    "say hello to a server",
    lambda kernel: greet,
    (
        VerbParameter("id", str, "whom"),
        VerbParameter("times", int, "how often", 1, "--times", "N"),
        VerbParameter("loud", bool, "in capitals", False, "--loud"),
    ),
    has_button=True,
)


async def greet(id: str, times: int, loud: bool) -> list[dict[str, Any]]:
    return [{"hello": id.upper() if loud else id}] * times


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def added_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNEL_VERBS, "greet", GREET)


async def test_a_verb_that_is_added_to_the_table_works_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mgp.toml"
    config.write_text("")
    kernel: Any = object()
    async with open_control_socket(config, kernel):
        request = {"verb": "greet", "id": "a", "times": 2}
        assert await asyncio.to_thread(lambda: list(ask_kernel(config, request))) == [{"hello": "a"}] * 2
        with pytest.raises(UsageError, match="greet needs times"):
            await asyncio.to_thread(lambda: list(ask_kernel(config, request | {"times": "2"})))
        assert await asyncio.to_thread(main, ["greet", "a", "--loud", "--config", str(config)]) == 0
        assert json.loads(capsys.readouterr().out) == {"hello": "A"}
        assert "greet" in KernelOverSocket(config).verbs
        assert await KernelOverSocket(config).run_verb(*parse_verb_request(request | {"times": 1})) == [{"hello": "a"}]


def test_its_help_comes_from_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["greet", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    whole, own = capsys.readouterr().out.split("usage: defserve kernel greet")
    assert "  greet       say hello to a server\n" in whole
    assert "Say hello to a server." in own
    for text in ("ID", "whom", "--times N", "how often", "--loud", "in capitals"):
        assert text in own


def test_rows_are_made_as_the_command_line_needs_them() -> None:
    for name, verb in KERNEL_VERBS.items():
        first, *rest = name.split()
        assert (first in VERB_GROUPS) == bool(rest), name
        assert all(one.option for one in verb.parameters if one.type is bool), name
    assert {f"{group} list" for group in VERB_GROUPS} <= KERNEL_VERBS.keys()
    # A verb that is gone must not stay in the table of how answers look.
    assert SHOWN_BY.keys() <= KERNEL_VERBS.keys()


def test_the_inspector_offers_what_its_buttons_do_and_no_verb_that_changes_rights() -> None:
    assert list_verb_buttons() == ["restart", "start", "stop", "reload", "pins accept", "greet"]
