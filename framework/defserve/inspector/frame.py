"""What the frame of the page needs: the first facts, the eras, the connection, the sign-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, era_of
from defserve.inspector.protocol import MOST_SCOPES, BadMessage, Request, is_scope
from defserve.wire.jsonvalue import is_array


async def hello(inspection: Inspection, request: Request) -> Any:
    return inspection.hello()


async def open_era(inspection: Inspection, request: Request) -> Any:
    """Open the conversation of an era, if it is not open. What is told about it."""
    connection = inspection.connection(era_of(request))
    await connection.client()
    return inspection.told(connection)


async def retry(inspection: Inspection, request: Request) -> Any:
    inspection.connection(era_of(request)).retry()


async def sign_in(inspection: Inspection, request: Request) -> Any:
    """Begin to sign in. Answered when there is an address to open, or when it has failed."""
    scopes = request.arguments.get("scopes", [])
    if not is_array(scopes) or len(scopes) > MOST_SCOPES or not all(map(is_scope, scopes)):
        raise BadMessage(f"scopes are a list of at most {MOST_SCOPES} words")
    return await inspection.account.sign_in(scopes)


async def cancel_sign_in(inspection: Inspection, request: Request) -> Any:
    return await inspection.account.cancel()


async def sign_out(inspection: Inspection, request: Request) -> Any:
    """Revoke the tokens and forget them. `note` says what was not possible at the issuer."""
    return {"note": await inspection.account.sign_out()}


VERBS: Final[Mapping[str, Verb]] = {
    "hello": hello,
    "era.open": open_era,
    "connection.retry": retry,
    "account.sign_in": sign_in,
    "account.cancel": cancel_sign_in,
    "account.sign_out": sign_out,
}
