"""An endpoint whose credentials may change: they are asked for with each request, and renewed if they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from defserve.host.link import Authorizer, HttpChallenge, Resolve
from defserve.host.links.endpoint import Endpoint, HttpResponse, authorized

MOST_ROUNDS: Final = 3
"""How often one request is sent again with other credentials: a nonce, a sign-in, more scopes."""
REFUSED: Final = frozenset((401, 403))
AUTHORIZATION: Final = "authorization"


class AuthorizedEndpoint(Endpoint):
    """Sends what `authorizer` gives with every request, and asks it what to do about a refusal."""

    def __init__(self, url: str, headers: Mapping[str, str], resolve: Resolve | None, authorizer: Authorizer) -> None:
        super().__init__(url, headers, resolve)
        self._authorizer = authorizer

    async def send(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None, *, repeatable: bool = False
    ) -> HttpResponse:
        """See `Endpoint.send`. A refused request was not acted on, so it is sent again. Raises SignInError too."""
        for left in reversed(range(MOST_ROUNDS + 1)):
            shown = await self._authorizer.headers(method, self._address.url)
            response = await super().send(method, {**headers, **shown}, content, repeatable=repeatable)
            if response.status not in REFUSED:
                self._authorizer.taken(response.headers)
                return response
            sent = shown.get(AUTHORIZATION, "")
            refusal = HttpChallenge(response.status, response.headers, sent, self._http.peers)
            if not left or not await self._authorizer.refused(refusal):
                return response
            await response.aclose()
        raise AssertionError("unreachable")

    @property
    def is_signing_in(self) -> bool:
        return self._authorizer.is_signing_in

    async def aclose(self) -> None:
        """Close the connections, and give up a sign-in that is under way."""
        await self._authorizer.aclose()
        await super().aclose()


def endpoint_at(
    url: str,
    headers: Mapping[str, str] | None,
    token: str | None,
    resolve: Resolve | None,
    authorizer: Authorizer | None,
) -> Endpoint:
    """The endpoint at an address, with a fixed token, with an authorizer, or with neither."""
    whole = authorized(headers, token)
    if authorizer is None:
        return Endpoint(url, whole, resolve)
    return AuthorizedEndpoint(url, whole, resolve, authorizer)
