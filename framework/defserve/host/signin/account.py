"""Signs a person in to a server, and out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from defserve.errors import PeerError, UsageError
from defserve.host.addresses import connect_url
from defserve.host.client import Client
from defserve.host.link import Authorizer, ClientAuth
from defserve.host.signin.authorizer import ServerAuthorizer
from defserve.host.signin.errors import SignInError
from defserve.host.signin.fetching import Fetcher
from defserve.host.signin.keeping.files import user_store
from defserve.host.signin.options import SignIn
from defserve.host.signin.redirects.redirect import Redirect
from defserve.host.signin.tokens import TokenEndpoint

SECONDS: Final = 60.0
"""For each answer of the server. While somebody signs in, the clock stands still."""


class _Same:
    """A `ClientAuth` that gives one authorizer, to be looked at afterwards."""

    def __init__(self, authorizer: ServerAuthorizer) -> None:
        self._authorizer = authorizer

    def authorizer(self, url: str) -> Authorizer:
        return self._authorizer


async def sign_in(
    url: str,
    redirect: Redirect,
    *,
    scopes: Sequence[str] = (),
    client_id: str | None = None,
    client_secret: str | None = None,
    issuer: str | None = None,
) -> str:
    """Sign in to a server, and give its name. The tokens are kept for this user. Raises PeerError, UsageError.

    `scopes` are asked for beside those of before; without any, the server says which.
    """
    known = await asyncio.to_thread(user_store().read, url)
    authorizer = SignIn(
        scopes=(*(known.asked if known else ()), *scopes) if scopes else None,
        client_id=client_id,
        client_secret=client_secret,
        redirect=redirect,
        issuer=issuer,
        anew=True,
    ).authorizer(url)
    name = await _visit(url, _Same(authorizer))
    if authorizer.credential is None or authorizer.credential.tokens is None:
        await authorizer.sign_in()
        name = await _visit(url, _Same(authorizer))
    return name


async def _visit(url: str, auth: ClientAuth) -> str:
    """Look at the server, so that it asks for a token, and give its name."""
    async with Client(await connect_url(url, auth=auth), timeout=SECONDS) as client:
        if "tools" in client.capabilities:
            try:
                await client.request("tools/list", {})
            except PeerError as error:
                if error.data and "status" in error.data:
                    raise
        return str(client.server_info.get("title") or client.server_info.get("name") or url)


async def sign_out(url: str) -> str:
    """Revoke the tokens for a server and forget them. What was not possible at the issuer; empty if all was.

    Raises UsageError if there is no such sign-in.
    """
    store = user_store()
    try:
        credential = await asyncio.to_thread(store.read, url)
    except UsageError:
        credential = None  # the keyring is gone: what is here is forgotten all the same
    if not await asyncio.to_thread(store.forget, url):
        raise UsageError(f"you are not signed in to {url}", fix="`defserve login --list` shows where you are")
    if credential is None or credential.tokens is None:
        return ""
    endpoint = TokenEndpoint(credential.issuer, credential.client, Fetcher(credential.reach), proof_key=credential.key)
    try:
        if await endpoint.revoke(credential.tokens):
            return ""
        return f"{credential.issuer.issuer} cannot revoke tokens; they stay valid there until they expire"
    except SignInError as error:
        return f"the tokens are forgotten here, and not revoked: {error.problem}"
