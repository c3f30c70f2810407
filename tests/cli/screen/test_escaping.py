"""What a hostile server writes reaches pipes escaped, and JSON keeps its value. Only content may be exact."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.base.redaction import escape_unprintable_json, escape_unprintable_lines
from defserve.cli.commands.read import iter_prompt_lines
from defserve.cli.screen import make_console
from defserve.cli.screen_blocks import DocumentBlock, JsonBlock, StyledLine, iter_plain_lines
from defserve.client.links.stdio import ProcessLink
from tests.rows import for_each_row

HOSTILE = "\x1b]0;x\x07\x9b31m\x7f\u202eRTL\u2066\U000e0041\r|"
RAW = set(HOSTILE) - set("]0;x31mRTL|")


@for_each_row("compact", [True, False])
def test_json_escapes_what_reorders_hides_or_controls_and_loses_nothing(compact: bool) -> None:
    [text] = JsonBlock({HOSTILE: [HOSTILE, "ä\n\t"]}, compact=compact)
    assert not RAW & set(text)
    assert "ä" in text
    assert json.loads(text) == {HOSTILE: [HOSTILE, "ä\n\t"]}


@given(st.text(st.characters()), st.sampled_from([None, 2]))
def test_any_text_comes_back_from_escaped_json(text: str, indent: Any) -> None:
    assert json.loads(escape_unprintable_json(json.dumps([text], ensure_ascii=False, indent=indent))) == [text]


def test_a_prompt_is_escaped_in_a_pipe_and_a_resource_is_exact() -> None:
    content = {"type": "text", "text": f"one\n\ttwo {HOSTILE}"}
    found = {"description": HOSTILE, "messages": [{"role": HOSTILE, "content": content}, None, 5]}
    shown = "\n".join(line for block in iter_prompt_lines(found, "p", ".") for line in iter_plain_lines(block))
    assert not RAW & set(shown)
    assert "one\n\ttwo" in shown
    assert list(iter_prompt_lines({"messages": 5}, "p", ".")) == []
    assert list(DocumentBlock(HOSTILE)) == [HOSTILE]


def test_lines_and_tabs_stay() -> None:
    assert escape_unprintable_lines("a\r\n\tb\x1b\n") == "a\n\tb\\x1b\n"


@pytest.mark.anyio
async def test_what_a_child_writes_to_stderr_is_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    code = f"import sys; sys.stderr.buffer.write({HOSTILE.encode()!r} + b'\\n')"
    link = await ProcessLink.spawn(sys.executable, ["-c", code], echo=True)
    await link.wait()
    await link.aclose()
    shown = capsys.readouterr().err
    assert "RTL" in shown
    assert not RAW & set(shown)


@pytest.mark.parametrize("size", ["0", "00", "x", "-5", "²", "9" * 5_000, ""])
def test_a_size_that_is_none_is_taken_for_the_usual_one(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    from defserve.cli.screen_drawing import draw_blocks

    monkeypatch.setenv("COLUMNS", size)
    monkeypatch.setenv("LINES", size)
    stream = io.StringIO()
    screen = make_console(stream)
    draw_blocks(screen, [StyledLine("hello"), "there"])
    assert "hello" in stream.getvalue() and "there" in stream.getvalue()
    assert screen.width == 80


def test_a_given_size_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "123")
    assert make_console(io.StringIO()).width == 123
