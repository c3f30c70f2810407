"""A company's identity provider on a port of this machine, made of Authlib: it issues ID-JAGs, and exchanges tokens.

Its token endpoint, the proof of its clients and its signatures are Authlib's and joserfc's, not ours.
"""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from authlib.oauth2.drafts.id_jag import IDJAGGrant
from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
    BaseGrant,
    ClientMixin,
    InvalidRequestError,
    OAuth2Error,
    TokenEndpointMixin,
)
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, OAuth2Request
from joserfc import jwk, jwt

from tests.auth.issuer import raw

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "true"  # it is on loopback
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
CLIENT_ID, CLIENT_SECRET = "tools-at-idp", "secret-at-idp"


class InteractionRequired(OAuth2Error):
    """What Entra answers if a person has to do something first."""

    error = "interaction_required"
    status_code = 400

    def get_body(self) -> list[tuple[str, str]]:
        return [*super().get_body(), ("claims", '{"access_token":{"acrs":{"essential":true,"value":"c1"}}}')]


class Provider(AuthorizationServer):
    """`forms` are what its token endpoint was sent, and `exchanged` how many tokens it gave for others."""

    def __init__(self) -> None:
        super().__init__()
        self.issuer = ""
        self.key = jwk.ECKey.generate_key("P-256", {"kid": "first"})
        self.keys = jwk.KeySet([self.key, jwk.ECKey.generate_key("P-256", {"kid": "second"})])
        self.forms: list[dict[str, str]] = []
        self.exchanged = 0
        self.lifetime = 300
        self.wants_interaction = False
        self.register_grant(TokenExchange)
        self.register_grant(self.take_jwt_grant())

    def take_jwt_grant(self) -> type[BaseGrant]:
        """What answers `jwt-bearer`: here Entra's form of an exchange."""
        return OnBehalfOf

    def make_id_jag(
        self, audience: str, client_id: str, /, *, header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """An ID-JAG with further claims. One whose own claims or header are changed (None leaves one out) is made by
        hand: Authlib would not sign it."""
        own = {"iss": self.issuer, "sub": "ann", "aud": audience, "client_id": client_id, "jti": "", "iat": 0, "exp": 0}
        now = int(time.time())
        if header is None and not own.keys() & claims.keys():
            return IDJAGGrant.sign(
                self.key,
                self.issuer,
                audience,
                "ann",
                client_id,
                expires_at=now + 300,
                claims=claims,
                header={"kid": "first"},
                alg="ES256",
            )
        said = {**own, "jti": os.urandom(12).hex(), "iat": now, "exp": now + 300, **claims}
        head = {"alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": "first", **(header or {})}
        return raw(
            {name: value for name, value in head.items() if value is not None},
            {name: value for name, value in said.items() if value is not None},
            key=self.key.private_key,
        )

    def make_access_token(self, subject_token: str, audience: str, scope: str) -> str:
        """A token for another API, in the name of whoever the subject token is about."""
        self.exchanged += 1
        claims = jwt.decode(subject_token, self.keys).claims
        said = {"iss": self.issuer, "sub": claims["sub"], "aud": audience, "scope": scope, "n": self.exchanged}
        return jwt.encode({"alg": "ES256", "kid": "first"}, said, self.key)

    # -- what Authlib asks of whoever uses it -------------------------------------------------------------

    def query_client(self, client_id: str) -> ClientMixin | None:
        return AtProvider() if client_id == CLIENT_ID else None

    def save_token(self, token: Any, request: Any) -> None: ...

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None: ...

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        form, headers = request
        return FormRequest(f"{self.issuer}/token", form, headers)

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, bytes]:
        return status, json.dumps(dict(body)).encode()


class FormRequest(OAuth2Request):
    """A form, as Authlib reads it."""

    def __init__(self, url: str, form: dict[str, str], headers: dict[str, str]) -> None:
        super().__init__("POST", url, headers=headers)
        self.payload = BasicOAuth2Payload(form)

    @property
    def form(self) -> dict[str, str]:
        return self.payload.data


class AtProvider(ClientMixin):
    """The application, as the provider knows it."""

    def get_client_id(self) -> str:
        return CLIENT_ID

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_grant_type(self, grant_type: str) -> bool:
        return True


class TokenExchange(BaseGrant, TokenEndpointMixin):
    """RFC 8693: an ID-JAG, or an access token for another API."""

    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]
    GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        if not self.request.payload.data.get("subject_token") or not self.request.payload.data.get(
            "subject_token_type"
        ):
            raise InvalidRequestError("no subject token")
        if self.server.wants_interaction:
            raise InteractionRequired("sign in with a second factor")

    def create_token_response(self) -> Any:
        form, server = self.request.payload.data, self.server
        asked = {"scope": form["scope"]} if form.get("scope") else {}
        if form.get("requested_token_type") == ID_JAG:
            made = server.make_id_jag(form["audience"], "claude", resource=form["resource"], **asked)
            more: dict[str, Any] = {"issued_token_type": ID_JAG, "token_type": "N_A"}
        else:
            made = server.make_access_token(form["subject_token"], form.get("audience", ""), form.get("scope", ""))
            more = {"issued_token_type": ACCESS_TOKEN, "token_type": "Bearer"}
        return 200, {"access_token": made, "expires_in": server.lifetime, **more, **asked}, []


class OnBehalfOf(BaseGrant, TokenEndpointMixin):
    """Entra's form of it."""

    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]
    GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        form = self.request.payload.data
        if form.get("requested_token_use") != "on_behalf_of" or not form.get("scope") or not form.get("assertion"):
            raise InvalidRequestError("not a request on behalf of somebody")
        if self.server.wants_interaction:
            raise InteractionRequired("sign in with a second factor")

    def create_token_response(self) -> Any:
        form = self.request.payload.data
        made = self.server.make_access_token(form["assertion"], "graph", form["scope"])
        return 200, {"access_token": made, "token_type": "Bearer", "expires_in": self.server.lifetime}, []


Documents = Mapping[str, Any]
AnswerForm = Callable[[dict[str, str], dict[str, str]], tuple[int, bytes]]


@contextmanager
def documents_at_address(find: Callable[[str], Documents], answer: AnswerForm | None = None) -> Iterator[str]:
    """The address of a server on this machine: `find` gives its documents by path, `answer` what a form is answered."""
    address = ""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = find(address).get(self.path)
            self._reply(404 if found is None else 200, json.dumps(found).encode())

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
            assert answer is not None
            self._reply(*answer(form, {name.title(): value for name, value in self.headers.items()}))

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


P = TypeVar("P", bound=Provider)


@contextmanager
def provider_at_address(make: type[P] = Provider) -> Iterator[P]:
    """The provider, on a port of its own."""
    provider = make()

    def find(address: str) -> Documents:
        # RFC 8414 and OpenID Connect Discovery want the first endpoint too, and so do the clients that check that.
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        metadata = {"issuer": address, **{name: f"{address}/{path}" for name, path in places.items()}}
        metadata |= {"response_types_supported": ["code"], "subject_types_supported": ["public"]}
        metadata |= {"id_token_signing_alg_values_supported": ["ES256"]}
        return {"/.well-known/openid-configuration": metadata, "/jwks": provider.keys.as_dict(private=False)}

    def answer(form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        provider.forms.append(form)
        return provider.create_token_response((form, headers))

    with documents_at_address(find, answer) as provider.issuer:
        yield provider
