"""Calls that are refused, told apart as any client can: by what is in the reply."""

from __future__ import annotations

from typing import Any

from defserve.client import Client
from defserve.errors import PeerError

Json = dict[str, Any]

GRANTS = "dev.cloto/mgp/grants"


async def refused(client: Client, tool: str, **arguments: Any) -> Json:
    """The body of §7.4 with which a guard refuses a call: the same for every client, but for the code's form.

    With MGP it is in an error, unless what is refused is code.
    """
    try:
        result = await client.call_raw(tool, arguments)
    except PeerError as error:
        body = {**error.data, "code": error.code}
    else:
        assert result["isError"] is True, result
        (block,) = result["content"]
        body = result["_meta"]["dev.defserve/error"]
        assert block["text"].startswith(f"{body['reason']}: ")
    assert body["status"] == "rejected"
    assert body["violations"]
    return body


async def forbidden(client: Client, tool: str, *, meta: Json | None = None, **arguments: Any) -> int | str:
    """How a call is refused for want of a permission: the error's number with MGP, the symbol in the result without."""
    try:
        result = await client.call_raw(tool, arguments, meta=meta)
    except PeerError as error:
        assert error.data["_mgp"]["code"] == error.code
        return error.code
    assert result["isError"] is True, result
    return result["_meta"]["dev.defserve/error"]["error_type"]


async def granting(client: Client, *permissions: str) -> Json | None:
    """Grant permissions as a client of either era does; the `_meta` that has to go along with calls."""
    grants = dict.fromkeys(permissions, "approved")
    if client.stateless:
        return {GRANTS: grants}
    about = {"request_id": "perm-001", "approved_by": "test", "expires_at": None}
    await client.request("mgp/permission/grant", {"grants": grants, **about})
    return None
