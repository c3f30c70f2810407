"""The curl calls of the page about REST do what it says, and errors lead to it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from defserve import Server

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"

server = Server("market")


@server.tool
def price(ticker: str) -> float:
    return 1.5


def curl_calls() -> list[tuple[str, dict[str, str], str]]:
    """URL, headers and body of each call on the page."""
    calls: list[tuple[str, dict[str, str], str]] = []
    blocks = [block.partition("```")[0] for block in PAGE.read_text(encoding="utf-8").split("```sh\n")[1:]]
    for text in (block[block.index("curl ") :] for block in blocks):
        words = iter(shlex.split(text.replace("\\\n", " "))[1:])
        url, headers, body = "", dict[str, str](), ""
        for word in words:
            if word == "-H":
                name, _, headers[name] = next(words).partition(": ")
            elif word == "-d":
                body = next(words)
            else:
                url = word
        calls.append((url, headers, body))
    return calls


@pytest.mark.parametrize(("url", "headers", "body"), curl_calls())
def test_a_curl_call_of_the_page_gets_the_price(url: str, headers: dict[str, str], body: str):
    with TestClient(server.asgi(rest=True), base_url="http://127.0.0.1:8000") as web:
        answer = web.post(url.removesuffix("/mcp"), content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert "1.5" in answer.text


@pytest.mark.parametrize("headers", [{}, {"mcp-protocol-version": "2026-07-28"}])
def test_a_curl_call_without_mcp_s_members_is_told_of_rest(headers: dict[str, str]):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with TestClient(server.asgi(), base_url="http://127.0.0.1:8000") as web:
        answer = web.post("/", json=body, headers=headers)
    assert answer.status_code == 400
    assert "For curl, serve with --rest" in answer.text
