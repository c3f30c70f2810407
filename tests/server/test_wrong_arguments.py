"""What authors create with wrong arguments names their line, the mistake and the argument that was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import JWT, ApiKeys, Auth, Command, Limits, Server, Shell, UsageError
from defserve.auth import OAuthProxy, StaticTokens
from defserve.code_mode import CodeMode
from defserve.guard import Egress
from defserve.search import Search
from tests.rows import for_each_row


def make(kind: Any, *args: Any, **named: Any) -> Any:
    """A type checker would find the mistakes."""
    return kind(*args, **named)


class Note(BaseModel):
    text: str = ""


@for_each_row(
    ("create", "problem", "fix"),
    [
        (lambda: make(Shell, allowd=["ls"]), "Shell has no option 'allowd'", "did you mean 'allowed'?"),
        (lambda: make(Server("s").state, Note, kep=3), "state has no option 'kep'", "did you mean 'keep'?"),
        (lambda: make(JWT, audiance="x"), "JWT has no option 'audiance'", "did you mean 'audience'?"),
        (lambda: make(ApiKeys, peper="x"), "ApiKeys has no option 'peper'", "did you mean 'pepper'?"),
        (lambda: make(Auth, scops=[]), "Auth has no option 'scops'", "did you mean 'scopes'?"),
        (lambda: make(Limits, responce=1), "Limits has no option 'responce'", "did you mean 'response'?"),
        (lambda: make(Search, levl="auto"), "Search has no option 'levl'", "did you mean 'level'?"),
        (lambda: make(Egress, tmeout=1), "Egress has no option 'tmeout'", "did you mean 'timeout'?"),
        (lambda: make(CodeMode, memory_byte=1), "CodeMode has no option 'memory_byte'", "did you mean 'memory_bytes'?"),
        (lambda: make(Command, "x", enw={}), "Command has no option 'enw'", "did you mean 'env'?"),
        (lambda: make(Server, "s", verison="1"), "Server has no option 'verison'", "did you mean 'version'?"),
        (
            lambda: make(OAuthProxy, "github", client_id="i", client_secret="s", allow="*"),
            "needs url",
            "url=…",
        ),
        (lambda: make(StaticTokens), "StaticTokens needs tokens", "write StaticTokens(tokens=…)"),
        (lambda: make(StaticTokens, {"a": "b"}, 2), "StaticTokens got 2 arguments without a name", "write fewer"),
    ],
)
def test_a_wrong_argument_is_explained(create: Callable[[], Any], problem: str, fix: str):
    with pytest.raises(UsageError) as error:
        create()
    assert problem in error.value.problem
    assert fix in error.value.fix
    assert "test_wrong_arguments.py:" in error.value.where


def test_a_mistake_inside_a_constructor_stays_what_it_is():
    class Odd(dict[str, str]):
        def items(self) -> Any:
            raise TypeError("from inside")

    with pytest.raises(TypeError, match="from inside"):
        StaticTokens(Odd(token="ann"))


def test_tokens_without_callers_and_the_name_of_a_key_file_are_explained():
    with pytest.raises(UsageError, match=r"takes a dict, and got a list\n  fix: .*StaticTokens\(\{token"):
        make(StaticTokens, ["secret"])
    with pytest.raises(UsageError, match=r"fix: give what is in the file: Path\('pub.pem'\).read_text\(\)"):
        JWT(issuer="https://login.example", audience="notes", key="pub.pem")


def test_a_wrapper_of_a_method_that_does_not_exist_is_named_with_its_line():
    server = Server("s")

    @server.around("tool/call")
    async def log(call: Any, params: Any, next: Any) -> Any:
        return await next(call, params)

    with pytest.raises(UsageError, match=r"test_wrong_arguments.py:\d+: around\('tool/call'\).*\n  fix: did you mean"):
        server.asgi()


def test_middleware_leads_to_around():
    with pytest.raises(AttributeError, match=r'fix: @server.around\("tools/call"\)'):
        make(getattr, Server("s"), "middleware")
