"""A vendor with users: an OpenID provider that signs in whoever it is told to, in this process or at an address."""

from __future__ import annotations

import http.server
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from defserve.auth.issuers import HttpRequest, HttpResponse
from tests.auth.issuer import jwk, key_set, private_key, signed

KEY = private_key("ES256", "vendor")
CLIENT_ID, CLIENT_SECRET = "our-app", "our-app-secret"


class FakeVendor:
    """Everything a vendor knows. Change the attributes to make it behave badly."""

    def __init__(self, issuer: str = "https://vendor.example") -> None:
        self.issuer = issuer
        self.user: dict[str, Any] = {"sub": "u-1", "email": "alice@example.com", "email_verified": True}
        self.codes: dict[str, dict[str, str]] = {}
        self.refresh_tokens: set[str] = set()
        self.asked: list[HttpRequest] = []
        self.claims: dict[str, Any] = {}
        """Claims of the ID token that are changed; None leaves one out."""
        self.metadata: dict[str, Any] = {"authorization_response_iss_parameter_supported": True}
        self.is_shut = False
        self.lacks: set[str] = set()
        """What its token endpoint leaves out: `refresh_token`, or the `id_token` of a renewal."""
        self.lasts: float | None = None
        """For how many seconds it says that an access token is good."""
        self.away: set[str] = set()
        """Paths that do not answer at the moment."""
        self.mistakes: list[Exception] = []
        """What `answer` raised. To who asked it looks like a connection that broke, and a test may take it for more."""

    def sign_in(self, url: str) -> str:
        """A browser comes with this URL, and its user signs in. Returns where the browser is sent."""
        fields = dict(parse_qsl(urlsplit(url).query))
        assert fields["client_id"] == CLIENT_ID and fields["response_type"] == "code"
        code = f"vendor-code-{len(self.codes)}"
        self.codes[code] = fields
        back = {"code": code, "state": fields["state"], "iss": self.issuer}
        return f"{fields['redirect_uri']}?{urlencode(back)}"

    async def send(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request)

    def answer(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        if self.is_shut or urlsplit(request.url).path in self.away:
            return HttpResponse(503, {}, b"")
        match urlsplit(request.url).path:
            case "/.well-known/openid-configuration":
                return _json(
                    {
                        "issuer": self.issuer,
                        "authorization_endpoint": f"{self.issuer}/auth",
                        "token_endpoint": f"{self.issuer}/token",
                        "jwks_uri": f"{self.issuer}/keys",
                        **self.metadata,
                    }
                )
            case "/auth":
                return HttpResponse(302, {"location": self.sign_in(request.url)}, b"")
            case "/keys":
                return HttpResponse(200, {}, key_set(jwk(KEY, "ES256", kid="v")))
            case "/token":
                return self._token(dict(request.form or {}))
            case "/user":
                good = request.headers.get("authorization", "").startswith("Bearer vendor-access-")
                return _json(self.user) if good else _json({"error": "bad"}, 401)
            case _:
                return _json({"error": "not found"}, 404)

    def _token(self, form: dict[str, str]) -> HttpResponse:
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return _json({"error": "invalid_grant"}, 400)
            self.refresh_tokens.discard(form["refresh_token"])
            return _json({**self._tokens(), **({} if "id_token" in self.lacks else self._id_token(None))})
        asked = self.codes.pop(form["code"], None)
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            return _json({"error": "invalid_grant"}, 400)
        made = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if made != asked["code_challenge"]:
            return _json({"error": "invalid_grant"}, 400)
        return _json({**self._tokens(), **self._id_token(asked.get("nonce"))})

    def _id_token(self, nonce: str | None) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "exp": now + 300, "iat": now, "nonce": nonce}
        said = {name: value for name, value in {**claims, **self.user, **self.claims}.items() if value is not None}
        return {"id_token": signed(said, key=KEY, headers={"kid": "v"})}

    def _tokens(self) -> dict[str, Any]:
        token = f"vendor-refresh-{len(self.asked)}"
        self.refresh_tokens.add(token)
        access = f"vendor-access-{len(self.asked)}"
        tokens: dict[str, Any] = {"access_token": access, "refresh_token": token, "token_type": "Bearer"}
        if self.lasts is not None:
            tokens["expires_in"] = self.lasts
        return {name: value for name, value in tokens.items() if name not in self.lacks}


def _json(fields: dict[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, {}, json.dumps(fields).encode())


@contextmanager
def vendor_at_address() -> Iterator[FakeVendor]:
    """A vendor that other processes reach, on a port of its own. Raises RuntimeError at its end if it broke itself."""
    vendor = FakeVendor()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(HttpRequest(self.path, headers={k.lower(): v for k, v in self.headers.items()}))

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["content-length"])).decode()
            self._reply(HttpRequest(self.path, dict(parse_qsl(form))))

        def _reply(self, request: HttpRequest) -> None:
            try:
                answer = vendor.answer(request)
            except Exception as mistake:
                vendor.mistakes.append(mistake)
                raise
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        vendor.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield vendor
        finally:
            server.shutdown()
            thread.join()
    if vendor.mistakes:
        raise RuntimeError("the vendor of the test is broken") from vendor.mistakes[0]
