"""How a client signs in, as one writes it: `Remote(url, auth=SignIn())`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from defserve.errors import UsageError
from defserve.host.signin.authorizer import AuthorizerOptions, ServerAuthorizer
from defserve.host.signin.clients import ClientRegistration
from defserve.host.signin.grants import (
    AssertionGrant,
    ClientCredentialsGrant,
    IdentityProvider,
    PersonGrant,
    TokenGrant,
    Wanted,
    given_client,
)
from defserve.host.signin.keeping.memory import CredentialStore, MemoryCredentialStore
from defserve.host.signin.redirects.redirect import Redirect
from defserve.host.signin.tokens import SigningKey


class SignIn:
    """A person signs in, in a browser, when the server asks for a token. `auth=SignIn()` is usually enough.

    scopes         what to ask for; None for what the server names
    client_id      of a client that you registered, or the https URL of its metadata (CIMD); without one, or where the
                   issuer takes no URLs, we register ourselves
    client_secret  of that client, if it has one
    name           what the issuer's page calls us, if we register
    redirect       how the person gets to the issuer and back; a browser of this machine by default
    store          where tokens are kept; with those of `defserve login` by default
    issuer         the issuer to take, which the server must name; with a `client_secret`, an issuer that is not at the
                   server's own origin must be given
    dpop           bind tokens to a key of ours; always done if the server says that it wants that
    anew           sign in even if there are tokens from before
    """

    def __init__(
        self,
        *,
        scopes: Sequence[str] | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        name: str = "defserve",
        redirect: Redirect | None = None,
        store: CredentialStore | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        anew: bool = False,
    ) -> None:
        self._client, self._url_id = given_client(client_id, client_secret)
        self._scopes, self._name, self._redirect = scopes, name, redirect
        self._store, self._how = store, AuthorizerOptions(issuer, dpop, anew)

    def authorizer(self, url: str) -> ServerAuthorizer:
        """See `ClientAuth`. Raises UsageError for an address that is neither https nor on this machine."""
        redirect, store = self._redirect, self._store
        if redirect is None:
            from defserve.host.signin.redirects.browser import Browser

            redirect = Browser()
        if store is None:
            from defserve.host.signin.keeping.files import user_store

            store = user_store()
        grant = PersonGrant(redirect, self._client, self._url_id, self._name, self._scopes)
        return ServerAuthorizer(url, store, grant, self._how)


class StoredSignIn:
    """What `defserve login` has kept. It is renewed if it can be, and nobody is asked."""

    def __init__(self, store: CredentialStore | None = None) -> None:
        self._store = store

    def authorizer(self, url: str) -> ServerAuthorizer:
        """See `ClientAuth`."""
        store = self._store
        if store is None:
            from defserve.host.signin.keeping.files import user_store

            store = user_store()
        return ServerAuthorizer(url, store, None)


class _Unattended:
    """A way to get tokens in which no person takes part. They are kept in memory, unless a `store` is given.

    A server does not decide who gets the secret: give the `issuer`, unless it is at the server's own origin.
    """

    def __init__(self, grant: TokenGrant, issuer: str | None, dpop: bool, store: CredentialStore | None) -> None:
        self._grant, self._how = grant, AuthorizerOptions(issuer, dpop)
        self._store = MemoryCredentialStore() if store is None else store

    def authorizer(self, url: str) -> ServerAuthorizer:
        """See `ClientAuth`. Raises UsageError for an address that is neither https nor on this machine."""
        return ServerAuthorizer(url, self._store, self._grant, self._how)


class ClientCredentials(_Unattended):
    """The client acts for itself, with a secret or with a private key (PEM or JWK) whose public half the issuer knows.

    algorithm   what the key signs with: ES256, RS256, PS256, EdDSA …
    issuer      who knows the client; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: str | bytes | None = None,
        algorithm: str = "ES256",
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        store: CredentialStore | None = None,
    ) -> None:
        if (client_secret is None) == (private_key is None):
            raise UsageError(
                "ClientCredentials needs a client secret or a private key", fix="give one: client_secret, private_key"
            )
        key = None if private_key is None else SigningKey(private_key, algorithm)
        grant = ClientCredentialsGrant(ClientRegistration(client_id, client_secret), key, scopes)
        super().__init__(grant, issuer, dpop, store)


class CrossAppAccess(_Unattended):
    """A person who signed in at their company need not sign in again: its identity provider vouches for them.

    idp_token_endpoint   the token endpoint of the identity provider; it is trusted with the ID token
    id_token             what the identity provider gave when the person signed in there
    idp_client_id        our client there
    client_id            our client at the issuer of the server, and its secret
    issuer               that issuer; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        *,
        idp_token_endpoint: str,
        id_token: str,
        client_id: str,
        client_secret: str | None = None,
        idp_client_id: str | None = None,
        idp_client_secret: str | None = None,
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        store: CredentialStore | None = None,
    ) -> None:
        there, _ = given_client(idp_client_id, idp_client_secret)
        provider = IdentityProvider(idp_token_endpoint, id_token, there)
        grant = AssertionGrant(provider.assertion, ClientRegistration(client_id, client_secret), scopes)
        super().__init__(grant, issuer, False, store)


class WorkloadIdentity(_Unattended):
    """A workload shows the token that its platform gives it (Kubernetes, a cloud, SPIFFE).

    token    the token, or a function that gives a fresh one; sync or async
    issuer   who trusts the platform; it must be given unless it is at the server's own origin
    """

    def __init__(
        self,
        token: str | Callable[[], str | Awaitable[str]],
        *,
        client_id: str,
        scopes: Sequence[str] | None = None,
        issuer: str | None = None,
        dpop: bool = False,
        store: CredentialStore | None = None,
    ) -> None:
        async def assertion(wanted: Wanted) -> str:
            given = token if isinstance(token, str) else token()
            return await given if isawaitable(given) else given

        super().__init__(AssertionGrant(assertion, ClientRegistration(client_id), scopes), issuer, dpop, store)
