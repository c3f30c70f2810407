"""Ends a sign-in."""

from __future__ import annotations

import asyncio

from defserve.errors import UsageError
from defserve.host.signin.errors import SignInError
from defserve.host.signin.fetching import Fetcher
from defserve.host.signin.keeping.files import user_store
from defserve.host.signin.tokens import TokenEndpoint


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
