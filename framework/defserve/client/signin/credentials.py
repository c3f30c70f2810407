"""What one sign-in leaves: tokens, what renewing and ending them needs, and proofs that we hold the key (DPoP).

Also where they are kept: in memory, in private files, in the system's keyring.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from defserve.auth.oauth import encode_client_basic_auth
from defserve.base.redaction import get_logger
from defserve.client.link import SIGN_IN_FOLDER, canonicalize_url, get_sign_in_path
from defserve.client.replies import (
    Json,
    filter_strings,
    number_or_none,
    object_or_empty,
    parse_json_object,
    string_or_none,
)
from defserve.client.signin.fetching import (
    FetchedDocument,
    Fetcher,
    NetworkReach,
    RefusedByIssuer,
    SignInError,
    quote_peer_text,
)
from defserve.client.signin.issuer import BASIC, POST, SIGNED, ClientRegistration, IssuerMetadata
from defserve.core import json_values
from defserve.errors import UsageError
from defserve.stores.files import (
    get_user_file_path,
    hold_file_lock,
    is_private_folder,
    make_newer_format_message,
    read_private_file,
    replace_file,
)

SECRET_NAMES: Final = ("access_token", "refresh_token", "client_secret", "key")


@dataclass(frozen=True, slots=True)
class Credential:
    """A token goes to `server` alone. `asked` are the scopes that were asked for.

    Without `tokens` it is a registration that can be used again.
    """

    server: str
    resource: str
    issuer: IssuerMetadata
    client: ClientRegistration
    tokens: Tokens | None = None
    asked: tuple[str, ...] = ()
    key: DpopProofKey | None = None
    reach: NetworkReach = NetworkReach.INTERNET

    @property
    def can_refresh(self) -> bool:
        return self.tokens is not None and self.tokens.refresh_token is not None

    def with_tokens(self, tokens: Tokens) -> Credential:
        """The same with renewed tokens. An issuer that sends no new refresh token means the old one."""
        if tokens.refresh_token is None and self.tokens is not None:
            tokens = replace(tokens, refresh_token=self.tokens.refresh_token)
        return replace(self, tokens=tokens)


def dump_public_fields(credential: Credential) -> Json:
    """What anyone may see of it."""
    issuer, client, tokens = credential.issuer, credential.client, credential.tokens
    return {
        "server": credential.server,
        "resource": credential.resource,
        "asked": list(credential.asked),
        "reach": int(credential.reach),
        # What renewing and ending a token needs of it.
        "issuer": {
            "issuer": issuer.issuer,
            "token_endpoint": issuer.token_endpoint,
            "revocation_endpoint": issuer.revocation_endpoint,
        },
        "client": {name: value for name, value in asdict(client).items() if name not in SECRET_NAMES},
        "tokens": tokens and {"type": tokens.type, "scopes": list(tokens.scopes), "expires_at": tokens.expires_at},
    }


def dump_secret_fields(credential: Credential) -> Json:
    """What only its owner may see."""
    tokens = credential.tokens
    parts: dict[str, Any] = {
        "access_token": tokens and tokens.access_token,
        "refresh_token": tokens and tokens.refresh_token,
        "client_secret": credential.client.client_secret,
        "key": credential.key and credential.key.kept,
    }
    return {name: value for name, value in parts.items() if value is not None}


def parse_credential(public: Json, secret: Json) -> Credential | None:
    """A credential of both parts; None if they are not those of one."""
    server, resource = string_or_none(public.get("server")), string_or_none(public.get("resource"))
    issuer, client, kept = (object_or_empty(public.get(name)) for name in ("issuer", "client", "tokens"))
    client_id, access = string_or_none(client.get("client_id")), string_or_none(secret.get("access_token"))
    if not server or not resource or not client_id:
        return None
    key = object_or_empty(secret.get("key"))
    tokens = access and Tokens(
        access,
        string_or_none(kept.get("type")) or "Bearer",
        tuple(filter_strings(kept.get("scopes"))),
        number_or_none(kept.get("expires_at")),
        string_or_none(secret.get("refresh_token")),
    )
    return Credential(
        server,
        resource,
        IssuerMetadata(
            string_or_none(issuer.get("issuer")) or "",
            token_endpoint=string_or_none(issuer.get("token_endpoint")) or "",
            revocation_endpoint=string_or_none(issuer.get("revocation_endpoint")) or "",
        ),
        ClientRegistration(
            client_id,
            string_or_none(secret.get("client_secret")),
            string_or_none(client.get("method")) or "none",
            string_or_none(client.get("redirect_uri")) or "",
            number_or_none(client.get("expires_at")),
            tuple(filter_strings(client.get("scopes"))),
        ),
        tokens or None,
        tuple(filter_strings(public.get("asked"))),
        DpopProofKey(key) if key else None,
        NetworkReach(min(int(number_or_none(public.get("reach")) or 0), NetworkReach.MACHINE)),
    )


# -- Tokens, and the endpoint that gives, renews and revokes them.


SLACK_SECONDS: Final = 30.0
"""A token that ends sooner counts as ended: it has to last until its request arrives."""
MAX_TOKEN_LENGTH: Final = 32 * 1024
MAX_LIFETIME_SECONDS: Final = 10 * 365 * 86_400
"""Seconds. An issuer may write any number."""
USE_DPOP_NONCE_ERROR: Final = "use_dpop_nonce"
TOKEN_TYPES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an issuer gave. `scopes` are those it says, or else those that were asked for."""

    access_token: str = field(repr=False)
    type: str = "Bearer"
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()

    @property
    def is_about_to_expire(self) -> bool:
        return self.expires_at is not None and self.expires_at - SLACK_SECONDS <= time.time()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key of a client (PEM or JWK), for `private_key_jwt`."""

    key: str | bytes = field(repr=False)
    algorithm: str = "ES256"


class TokenEndpoint:
    """The token endpoint of one issuer, as one client uses it. With a `proof_key`, tokens are bound to it (DPoP)."""

    def __init__(
        self,
        issuer: IssuerMetadata,
        client: ClientRegistration,
        fetcher: Fetcher,
        *,
        proof_key: DpopProofKey | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        self._issuer, self._client, self._fetcher = issuer, client, fetcher
        self._proof_key, self._signing_key = proof_key, signing_key
        self._nonce: str | None = None

    async def request_tokens(self, form: Mapping[str, str], asked: Sequence[str]) -> Tokens:
        """Ask for tokens. Raises RefusedByIssuer with the issuer's error, SignInError for anything else."""
        return read_tokens((await self.post_form(form)).document, asked, is_bound=self._proof_key is not None)

    async def post_form(self, form: Mapping[str, str]) -> FetchedDocument:
        """Send a form with the client's proof of who it is, and give the answer. Raises like `request_tokens`."""
        answer = await self._post(self._issuer.token_endpoint, "the token endpoint", form)
        if self._proof_key is not None and self._nonce and answer.document.get("error") == USE_DPOP_NONCE_ERROR:
            answer = await self._post(self._issuer.token_endpoint, "the token endpoint", form)
        if not answer.is_good:
            raise self._refusal(answer, "the token endpoint")
        return answer

    async def revoke(self, tokens: Tokens) -> bool:
        """Have tokens ended (RFC 7009). Whether the issuer could be asked. Raises SignInError if it refuses."""
        endpoint = self._issuer.revocation_endpoint
        if not endpoint:
            return False
        for kind, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
            if token:
                answer = await self._post(
                    endpoint, "the revocation endpoint", {"token": token, "token_type_hint": kind}
                )
                if answer.status != 200 and answer.document.get("error") != "unsupported_token_type":
                    raise self._refusal(answer, "the revocation endpoint")
        return True

    async def _post(self, url: str, what: str, form: Mapping[str, str]) -> FetchedDocument:
        if not url:
            raise SignInError(f"{self._issuer.issuer} does not say where its token endpoint is")
        fields, headers = self._add_client_proof(form)
        if self._proof_key is not None:
            headers["DPoP"] = self._proof_key.proof("POST", url, nonce=self._nonce)
        answer = await self._fetcher.post(url, what, fields, headers)
        self._nonce = answer.headers.get("dpop-nonce") or self._nonce
        return answer

    def _add_client_proof(self, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The form and the headers with what proves who the client is."""
        client, fields = self._client, dict(form)
        if client.method == BASIC and client.client_secret is not None:
            return fields, {"authorization": encode_client_basic_auth(client.client_id, client.client_secret)}
        fields["client_id"] = client.client_id
        if client.method == POST and client.client_secret is not None:
            fields["client_secret"] = client.client_secret
        elif client.method == SIGNED and (signing := self._signing_key) is not None:
            fields["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            fields["client_assertion"] = sign_assertion(
                signing.key, signing.algorithm, client.client_id, self._issuer.issuer
            )
        return fields, {}

    def _refusal(self, answer: FetchedDocument, what: str) -> RefusedByIssuer:
        error = string_or_none(answer.document.get("error")) or f"HTTP {answer.status}"
        said = quote_peer_text(answer.document.get("error_description") or "")
        return RefusedByIssuer(
            error,
            f"{what} of {self._issuer.issuer} refuses: {quote_peer_text(error)}{f': {said}' if said else ''}",
            fix=_FIXES.get(error, ""),
        )


_FIXES: Final = {
    "invalid_client": "check the client id and its secret; a registration may have ended",
    "invalid_grant": "sign in again",
    "invalid_scope": "ask for other scopes: --scope; in code: scopes=[…]",
    "invalid_target": "the issuer does not know this server: tell who runs it",
    "unauthorized_client": "the client may not use this grant: change that where it was registered",
}


def read_tokens(document: Json, asked: Sequence[str], *, is_bound: bool) -> Tokens:
    """The tokens in an answer. Raises SignInError if it has none, or they are of a kind that was not asked for."""
    access, kind = string_or_none(document.get("access_token")), string_or_none(document.get("token_type")) or ""
    type = TOKEN_TYPES.get(kind.lower())
    if not access or len(access) > MAX_TOKEN_LENGTH or not (access.isascii() and access.isprintable()) or " " in access:
        raise SignInError("the token endpoint answered without an access token that can be sent")
    if type is None or (type == "DPoP" and not is_bound):
        raise SignInError(
            f"the token endpoint gave a token of the type {quote_peer_text(kind)!r}, which was not asked for"
        )
    if type != "DPoP" and is_bound:
        # RFC 9449 §5: whoever wants tokens that nobody else can use does not take others.
        raise SignInError(
            "the token endpoint gave a token that is not bound to our key (DPoP), which was asked for",
            fix="leave dpop out if tokens need not be bound; if the server wants that, tell who runs its issuer",
        )
    granted, seconds = string_or_none(document.get("scope")), number_or_none(document.get("expires_in"))
    refresh = string_or_none(document.get("refresh_token"))
    return Tokens(
        access,
        type,
        tuple(granted.split()) if granted is not None else tuple(asked),
        time.time() + min(seconds, MAX_LIFETIME_SECONDS) if seconds is not None and seconds >= 0 else None,
        refresh if refresh and len(refresh) <= MAX_TOKEN_LENGTH else None,
    )


# -- DPoP (RFC 9449): a key of ours, and proofs that whoever sends a token has it.


class DpopProofKey:
    """A key pair for one credential. The private half leaves it only by `kept`."""

    def __init__(self, kept: Json | None = None) -> None:
        load_pyjwt()
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from jwt.algorithms import ECAlgorithm

        self._key: Any = ECAlgorithm.from_jwk(kept) if kept else generate_private_key(SECP256R1())
        self.kept: Json = ECAlgorithm.to_jwk(self._key, as_dict=True)
        """The whole key, to be kept with the tokens that are bound to it."""
        self._public: Json = {name: value for name, value in self.kept.items() if name != "d"}

    def __repr__(self) -> str:
        return "DpopProofKey(…)"

    def proof(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None) -> str:
        """A proof for one request; `token` is what it sends, `nonce` what the receiver wants to see."""
        parts = urlsplit(url)
        claims: Json = {
            "jti": secrets.token_urlsafe(24),
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = json_values.encode_base64url(hashlib.sha256(token.encode("ascii")).digest())
        if nonce is not None:
            claims["nonce"] = nonce
        return load_pyjwt().encode(claims, self._key, "ES256", {"typ": "dpop+jwt", "jwk": self._public})


def sign_assertion(key: str | bytes, algorithm: str, client_id: str, audience: str) -> str:
    """A JWT that proves who a client is (RFC 7523 §3), signed with its private key in PEM or JWK. Raises UsageError."""
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(24),
        "iat": now,
        "exp": now + 300,
    }
    jwt = load_pyjwt()
    try:
        # The names of those that sign with a shared secret begin with another letter.
        if not algorithm.startswith(("E", "P", "R")):
            raise ValueError(algorithm)
        text = key.decode() if isinstance(key, bytes) else key
        is_jwk = text.lstrip().startswith("{")
        return jwt.encode(claims, jwt.PyJWK.from_json(text, algorithm) if is_jwk else text, algorithm)
    except (ValueError, TypeError, AttributeError, NotImplementedError, jwt.PyJWTError) as error:
        # Not the text of the error: it may quote the key.
        raise UsageError(
            f"the private key cannot sign with {algorithm} ({type(error).__name__})",
            fix="give the key as PEM, and the algorithm that it is for: algorithm='RS256' for RSA",
        ) from None


def load_pyjwt() -> Any:
    """PyJWT, with what it needs for key pairs. Raises UsageError without it."""
    try:
        import cryptography
        import jwt
    except ImportError:
        raise UsageError(
            "this server wants signed requests, which needs PyJWT and cryptography", fix='pip install "defserve[auth]"'
        ) from None
    del cryptography
    return jwt


# -- Where sign-ins are kept, and the simplest such place: this process.


LOCK_SECONDS: Final = 60.0
"""Longer than a renewal may take."""


class CredentialStore(Protocol):
    """Keeps one credential for each server. Its methods may block, so they are called in a thread."""

    def load_credential(self, server: str) -> Credential | None:
        """The credential for a server."""
        ...

    def store_credential(self, credential: Credential) -> None:
        """Keep a credential instead of the one before. Raises UsageError if it cannot be kept."""
        ...

    def delete_credential(self, server: str) -> bool:
        """Forget a credential. Whether there was one."""
        ...

    def servers(self) -> Iterator[str]:
        """The servers that there are credentials for."""
        ...

    def hold_credential_lock(self, server: str) -> AbstractContextManager[None]:
        """Whoever else wants to renew the credential of this server waits. Entering it raises OSError or UsageError.

        It is entered in one thread and left in another.
        """
        ...


class MemoryCredentialStore:
    """A `CredentialStore` that ends with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, Credential] = {}
        self._locks: dict[str, threading.Lock] = {}

    def load_credential(self, server: str) -> Credential | None:
        return self._kept.get(server)

    def store_credential(self, credential: Credential) -> None:
        self._kept[credential.server] = credential

    def delete_credential(self, server: str) -> bool:
        return self._kept.pop(server, None) is not None

    def servers(self) -> Iterator[str]:
        return iter(tuple(self._kept))

    @contextmanager
    def hold_credential_lock(self, server: str) -> Generator[None]:
        lock = self._locks.setdefault(server, threading.Lock())
        if not lock.acquire(timeout=LOCK_SECONDS):
            raise TimeoutError(f"another renewal takes more than {LOCK_SECONDS:g} s")
        try:
            yield
        finally:
            lock.release()


# -- Sign-ins in private files, their secrets in the system's keyring where there is one.


FORMAT: Final = 1
MAX_FILE_BYTES: Final = 512 * 1024
NAME: Final = "the sign-in"

log = get_logger("client")


class FileCredentialStore:
    """A `CredentialStore` of one file for each server, which only its owner can read.

    With a `keyring` the secrets are there, and the files say for which servers. What it refuses is in the file.
    """

    def __init__(self, folder: Path, keyring: Keyring | None) -> None:
        self._folder, self._keyring = folder, keyring

    def load_credential(self, server: str) -> Credential | None:
        """See `CredentialStore`. Raises UsageError if others could have read or changed it."""
        found = self._read_file(get_sign_in_path(server, self._folder))
        # A token is for one server. A file that was copied or renamed does not make it one for another.
        return found if found is not None and canonicalize_url(found.server) == canonicalize_url(server) else None

    def store_credential(self, credential: Credential) -> None:
        path = get_sign_in_path(credential.server, self._folder)
        public, secret = dump_public_fields(credential), dump_secret_fields(credential)
        document: Json = {"format": FORMAT, **public}
        if self._keyring is not None and self._keyring.store_secret(self._entry(credential.server), json.dumps(secret)):
            document["keyring"] = True
        else:
            document["secrets"] = secret
        try:
            self._make_folder()
            replace_file(path, json.dumps(document).encode())
        except OSError as error:
            raise UsageError(f"{NAME} {path} cannot be kept: {error.strerror}", fix="check that folder") from None

    def delete_credential(self, server: str) -> bool:
        path = get_sign_in_path(server, self._folder)
        if self._keyring is not None:
            self._keyring.delete_secret(self._entry(server))
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(f"{NAME} {path} cannot be removed: {error.strerror}", fix="remove that file") from None
        return True

    def servers(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("*.json")):
            try:
                server = string_or_none(self._document(path).get("server"))
            except UsageError as error:  # one file that cannot be read hides none of the others
                log.warning("%s", error)
                continue
            if server:
                yield server

    def get_credential_path(self, server: str) -> str:
        """Where the secrets for a server are, for a person."""
        path = get_sign_in_path(server, self._folder)
        return "the system's keyring" if self._document(path).get("keyring") else str(path)

    @contextmanager
    def hold_credential_lock(self, server: str) -> Generator[None]:
        self._make_folder()
        with hold_file_lock(get_sign_in_path(server, self._folder).with_suffix(".lock"), LOCK_SECONDS):
            yield

    def _entry(self, server: str) -> str:
        """The key in the keyring. With the folder: who has two has a sign-in in each, and only one keyring."""
        return f"{canonicalize_url(server)} ({self._folder})"

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and not is_private_folder(self._folder):
            raise UsageError(f"others can use {self._folder}", fix=f"chmod 700 {self._folder}")

    def _read_file(self, path: Path) -> Credential | None:
        document = self._document(path)
        if not document:
            return None
        if not document.get("keyring"):
            return self._parse(document, object_or_empty(document.get("secrets")))
        if self._keyring is None:
            raise UsageError(
                f"the secrets of {NAME} {path} are in the system's keyring, which cannot be used here",
                fix='pip install "defserve[client]", or sign in again: defserve login URL',
            )
        kept = self._keyring.load_secret(self._entry(string_or_none(document.get("server")) or ""))
        return self._parse(document, parse_json_object(kept)) if kept else None

    def _parse(self, document: Json, secret: Json) -> Credential | None:
        """Raises UsageError if it needs a library that is not there. One that is damaged counts as none."""
        try:
            return parse_credential(document, secret)
        except UsageError:
            raise
        except Exception as error:  # PyJWT and cryptography have many for what is no key
            log.warning("%s to %s is damaged (%s): sign in again", NAME, document.get("server"), type(error).__name__)
            return None

    def _document(self, path: Path) -> Json:
        if not os.path.lexists(path):
            return {}
        if os.name == "posix" and not is_private_folder(path.parent):
            raise UsageError(f"others can use {path.parent}", fix=f"chmod 700 {path.parent}")
        try:
            document = object_or_empty(json.loads(read_private_file(path, NAME, MAX_FILE_BYTES)))
        except (OSError, ValueError) as error:
            said = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is damaged"
            log.warning("%s %s cannot be read: %s", NAME, path, said)
            return {}
        found = document.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise UsageError(
                make_newer_format_message(f"{NAME} {path}", found, FORMAT),
                fix="use the defserve that made it, or remove the file and sign in again",
            )
        return document


def get_user_credential_store() -> FileCredentialStore:
    """Where `defserve login` keeps what it gets."""
    return FileCredentialStore(get_user_file_path(SIGN_IN_FOLDER), Keyring.of_system())


# -- The system's keyring, by the library `keyring` (extra `keyring`).


KEYRING_SERVICE: Final = "defserve"


class Keyring:
    """One secret text for each key. What the system's keyring refuses is not kept there."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @classmethod
    def of_system(cls) -> Keyring | None:
        """The keyring of this system; None if there is none, or the library is not installed."""
        try:
            import keyring

            backend: Any = keyring.get_keyring()
            # Backends that keep nothing, or refuse to, say so by a low priority.
            return cls(backend) if float(backend.priority) >= 1 else None
        except Exception as error:
            log.debug("no keyring: %s", type(error).__name__)
            return None

    def load_secret(self, key: str) -> str | None:
        """Raises UsageError if the keyring does not answer, since somebody may have to unlock it."""
        try:
            return self._backend.get_password(KEYRING_SERVICE, key)
        except Exception as error:
            raise UsageError(
                f"the system's keyring does not answer ({type(error).__name__})", fix="unlock it, and try again"
            ) from None

    def store_secret(self, key: str, secret: str) -> bool:
        """Whether it was kept."""
        try:
            self._backend.set_password(KEYRING_SERVICE, key, secret)
        except Exception as error:
            log.warning("the system's keyring takes no secret (%s): it is kept in a file", type(error).__name__)
            return False
        return True

    def delete_secret(self, key: str) -> None:
        """Forget a secret, if it is there."""
        try:
            self._backend.delete_password(KEYRING_SERVICE, key)
        except Exception as error:
            log.debug("nothing to remove from the keyring: %s", type(error).__name__)
