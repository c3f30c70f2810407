from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Answers, Decline
from defserve.errors import ToolError

from .refusals import forbidden, granting, refused

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

LOCAL = ("memory", "stdio")
REFUSED = [
    ("run", "rm -rf /"),
    ("run", "git push"),
    ("run", "echo $HOME"),
    ("run", "echo a; id"),
    ("run", "/tmp/echo hello"),
    ("look", "touch here"),
    ("look", "cat < /etc/passwd"),
]


@pytest.mark.req("MGP-1.1", "MGP-1.3", "MGP-1.4", "MGP-4.2")
async def test_every_client_sees_what_the_tools_may_do(connect_to: ConnectTo, speaking: dict[str, Any]):
    async with connect_to("shell", capabilities=speaking) as client:
        run, look = await client.tools()
        assert run["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}
        assert look["annotations"] == {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
        block = run["_meta"]["dev.defserve/security"]
        assert (block["risk_level"], block["validator"]) == ("dangerous", "sandbox")
        assert run.get("security") == (block if speaking else None)


async def test_a_command_on_the_list_runs_for_those_who_have_the_permission(
    connect_to: ConnectTo, transport: str, speaking: dict[str, Any]
):
    async with connect_to("shell", capabilities=speaking) as client:
        if transport not in LOCAL:
            code = 1000 if speaking else "permission_denied"
            assert await forbidden(client, "run", command="echo hello") == code
            assert await forbidden(client, "look", command="wc -c /dev/null") == code
            if speaking:
                sent = await granting(client, "shell.execute", "filesystem.read")
                assert await forbidden(client, "run", command="echo hello", meta=sent) == code
    async with connect_to("shell", known=True, capabilities=speaking) as client:
        sent = await granting(client, "shell.execute", "filesystem.read") if speaking else None
        ran = await client.call_raw("run", {"command": "echo 'two  spaces' here"}, meta=sent)
        assert ran["content"] == [{"type": "text", "text": "two  spaces here\n"}]
        looked = await client.call_raw("look", {"command": "wc -c /dev/null"}, meta=sent)
        assert looked["content"] == [{"type": "text", "text": "0 /dev/null\n"}]
        late = await client.call_raw("run", {"command": "sleep 30", "seconds": 0.1}, meta=sent)
        assert late["content"][0]["text"].startswith("not done within 0.1 s")


@pytest.mark.req("MGP-4.5")
async def test_whatever_else_is_asked_for_never_runs(connect_to: ConnectTo, transport: str, speaking: dict[str, Any]):
    async with connect_to("shell", capabilities=speaking) as client:
        for tool, command in REFUSED:
            if transport in LOCAL:
                body = await refused(client, tool, command=command)
                assert body["code"] == (1010 if speaking else "VALIDATION_BLOCKED"), command
            else:
                code = await forbidden(client, tool, command=command)
                assert code == (1000 if speaking else "permission_denied"), command


async def test_a_person_who_can_be_asked_confirms_or_not(connect_to: ConnectTo, transport: str):
    heard: list[str] = []

    def person(message: str, schema: dict[str, Any]) -> Any:
        heard.append(message)
        return {"value": True} if len(heard) == 1 else Decline

    async with connect_to("shell", answers=Answers(ask=person)) as client:
        if transport not in LOCAL:
            assert await forbidden(client, "run", command="echo hello") == "permission_denied"
            return
        assert await client.call("run", command="echo hello") == "hello\n"
        with pytest.raises(ToolError, match="run was not confirmed"):
            await client.call("run", command="echo hello")
    assert heard == ["Run run?\n  command: echo hello"] * 2
