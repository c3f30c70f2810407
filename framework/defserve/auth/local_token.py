"""The local token: a key that only files of this user hold. Who shows it to a server on this machine is its user.

A server on a loopback address writes the key when it starts and removes it when it ends. Our own clients read it by
themselves. It is never sent to any other address, and never logged.
"""

from __future__ import annotations

import copy
import hmac
import os
import re
import secrets
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from defserve.auth.auth_options import Auth
from defserve.auth.authority import normalize_ip_address
from defserve.auth.bearer_tokens import (
    ExplainingVerifier,
    TokenRefused,
    check_verifier_available,
    check_verifier_settings,
    digest_token,
    get_token_check_function,
)
from defserve.auth.oauth import is_loopback
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.base.concurrency import lock_folder
from defserve.errors import UsageError
from defserve.stores.files import (
    OTHERS_MODE_BITS,
    get_user_file_path,
    is_private_folder,
    list_possible_private_folders,
    make_private_folder,
    write_fully,
)

if TYPE_CHECKING:
    from defserve.auth.bearer_tokens import TokenVerifier


class LocalTokenVerifier(ExplainingVerifier):
    """Knows one key, and asks `others` about every other token. It keeps a digest only."""

    def __init__(self, key: str, others: TokenVerifier | None = None) -> None:
        self._digest, self._others = digest_token(key), others
        self._check_other = get_token_check_function(others) if others is not None else None

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """See `ApiKeys.revocations`."""
        return getattr(self._others, "revocations", None)

    async def check_ready(self) -> None:
        """See `ApiKeys.check_ready`."""
        await check_verifier_available(self._others)

    def check_settings(self) -> None:
        """See `ApiKeys.check_settings`."""
        check_verifier_settings(self._others)

    async def check_token(self, token: str) -> Principal:
        """The local user for the key, else what the other verifier says. Compared in constant time."""
        if hmac.compare_digest(digest_token(token), self._digest):
            return LOCAL_PRINCIPAL
        if self._check_other is None:
            raise TokenRefused("token: it is not the local token of this server")
        return await self._check_other(token)


def add_local_token_auth(key: str, auth: Auth | None) -> Auth:
    """What the server's own `auth` lets in, and who shows the key. Without `auth`, strangers are let in as before."""
    if auth is None:
        found = Auth(LocalTokenVerifier(key))
        found.admits_strangers = True
        return found
    found = copy.copy(auth)
    found.use_verifier(LocalTokenVerifier(key, auth.verifier))
    return found


def check_local_token_host(host: str) -> None:
    """Raises UsageError where a local token cannot be used."""
    if not is_loopback(host):
        raise UsageError(
            f"a local token is for callers on this machine, and {host} is reached from others",
            fix="serve on 127.0.0.1, or check tokens with Server(auth=…)",
        )
    if os.name != "posix":
        raise UsageError(
            "this system does not say who owns a file, so there are no local tokens", fix="use Server(auth=…)"
        )


# -- The client's side of a local token: finds the key for an address.


_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class LocalAddress(NamedTuple):
    """An address whose server knows the key. `url` names the IP address for which the key was made."""

    url: str
    key: str


def find_local_server_url(url: str, *, keep: bool = False) -> LocalAddress | None:
    """The address with its key, if a server of this user runs there and published one.

    With `keep`, servers that start there later will have the same key. A name is replaced by the address for which the
    key was made: another user's server may listen at the other addresses of that name.
    """
    if os.name != "posix":
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or "@" in parts.netloc or not is_loopback(host):
        return None
    for place in _places(host, port):
        if (key := keep_key(place) if keep else read_key(place)) is not None:
            return LocalAddress(urlunsplit(parts._replace(netloc=_authority(place))), key)
    return None


def resolve_local_key(url: str, token: str | None, headers: Mapping[str, str]) -> tuple[str, str | None]:
    """The address to connect to, and the token to show there: the given one, or else the key for that address."""
    if token is not None or "authorization" in map(str.lower, headers):
        return url, token
    return find_local_server_url(url) or (url, None)


def _places(host: str, port: int) -> list[Place]:
    if (address := normalize_ip_address(host)) is not None:
        return [(address, port)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(place[4][0]) for place in found)
    return [(address, port) for address in addresses if is_loopback(address)]


def _authority(place: Place) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- The files that hold local tokens: one for each address, readable by its owner alone, removed when the server ends.
#
# A server locks its file for as long as it lives. So the file of a server that was killed is known by its free lock:
# its key is shown to nobody, since another program may listen there.
#
# A key that clients have in their settings is *kept*: a server that starts at that address again uses it again.


# An IP address and a port.
Place = tuple[str, int]

FOLDER: Final = "local-tokens"
KEPT_FOLDER: Final = "kept-local-tokens"
_KEY: Final = re.compile(rb"[A-Za-z0-9_-]{43}")


@contextmanager
def publish_local_key(places: Iterable[Place]) -> Generator[str]:
    """The key of a server that has bound these addresses, in files for as long as the block runs.

    Nobody else can serve there, so whatever lies at the place of a file is replaced.
    Raises UsageError if no file can be written that others cannot read.
    """
    places = list(places)
    key = next(
        (found for place in places if (found := _read_key_file(_get_kept_path(place)))), None
    ) or secrets.token_urlsafe(32)
    folder = make_private_folder(FOLDER, "the local token")
    with ExitStack() as files:
        for place in places:
            files.enter_context(_hold_key_file(folder / _name(place), key))
        yield key


@contextmanager
def _hold_key_file(path: Path, key: str) -> Generator[None]:
    """A locked file with the key, while the block runs. Only forks inherit the lock, and they have the sockets too."""
    file = _write(path, key)
    try:
        yield
    finally:
        _remove(path, file)
        os.close(file)


def read_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, if it is one of this user."""
    paths = (folder / _name(place) for folder in list_possible_private_folders(FOLDER))
    return next((found for path in paths if (found := _read_key_file(path, of_living=True))), None)


def keep_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, and from now on of every server that starts there.

    Raises UsageError if it cannot be kept.
    """
    key, path = read_key(place), _get_kept_path(place)
    if key is not None and _read_key_file(path) != key:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(_write(path, key))
        except OSError as error:
            raise _unwritable(path, error) from None
    return key


def _get_kept_path(place: Place) -> Path:
    return get_user_file_path(KEPT_FOLDER) / _name(place)


def _name(place: Place) -> str:
    return f"{place[0]}_{place[1]}"


# -- files -----------------------------------------------------------------------------------------------
def _write(path: Path, key: str) -> int:
    """Put a new file in place of whatever is there. The file is locked until it is closed. Raises UsageError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = -1
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        _is_locked(file, shared=False)
        write_fully(file, key.encode())
        with lock_folder(path.parent):
            os.rename(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        if file >= 0:
            os.close(file)
        raise _unwritable(path, error) from None
    return file


def _read_key_file(path: Path, *, of_living: bool = False) -> str | None:
    """The key in a file, if the file and its folder are this user's and nobody else can read them.

    With `of_living`, only if the server that wrote it lives. What a dead one left is removed.
    """
    if not is_private_folder(path.parent):
        return None
    try:
        # Without blocking: something else than a file may lie there.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & OTHERS_MODE_BITS:
            return None
        # Shared, so that clients do not take each other for the server.
        if of_living and not _is_locked(file, shared=True):
            _remove(path, file)
            return None
        content = os.read(file, 256)
    finally:
        os.close(file)
    return content.decode() if _KEY.fullmatch(content) else None


def _remove(path: Path, file: int) -> None:
    """Remove an open file from its place. Another server may have taken the place since: then its file stays."""
    with suppress(OSError), lock_folder(path.parent):
        if os.path.samestat(os.lstat(path), os.fstat(file)):
            os.unlink(path)


def _is_locked(file: int, *, shared: bool) -> bool:
    """Whether another process has locked a file. If not, it is locked until it is closed.

    A file system without locks leaves no way to tell: then files count as locked.
    """
    import fcntl  # not on every system; local tokens are for those that have it

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the local token {path} cannot be written: {error.strerror}", fix="check that folder")
