"""What servers and clients do about identity without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from typing import Any

from tests.attack.controls.http import APP, let_everybody_in
from tests.attack.controls.patching import Patch

AUTHORITY = "defserve.auth.authority"
LIVE = "defserve.auth.live.credentials:LiveCredentials"

__all__ = ["let_everybody_in"]

# -- whose yes counts ------------------------------------------------------------------------------------


def believe_strangers(patch: Patch) -> None:
    """The yes of somebody whom nobody vouches for counts."""
    patch.set(f"{AUTHORITY}:is_stranger", lambda caller: False)


def believe_nobody(patch: Patch) -> None:
    patch.set(f"{AUTHORITY}:is_stranger", lambda caller: True)


def take_any_address(patch: Patch) -> None:
    """A forwarded address is whatever a header says."""
    patch.set(f"{AUTHORITY}:canonical_address", lambda text: text.strip() or None)


def know_no_users(patch: Patch) -> None:
    """Who is at the other end of a unix socket is not asked."""
    patch.set(f"{AUTHORITY}:same_user_or_stranger", lambda user: _stranger())


def _stranger() -> Any:
    from defserve.auth.authority import stranger_at

    return stranger_at("")


# -- whose it is -----------------------------------------------------------------------------------------


def share_everything(patch: Patch) -> None:
    """Whatever anybody began belongs to everybody."""
    patch.set("defserve.auth.principals:Principal.covers", lambda self, other: True)
    patch.set("defserve.core.identity:may_act_for", lambda one, other: True)


# -- tokens and what they hold open ----------------------------------------------------------------------


def keep_what_is_open(patch: Patch) -> None:
    """A credential is checked when something is opened, and never again."""

    async def check_nothing(self: Any, *given: Any) -> None:
        pass

    patch.set(f"{LIVE}.sweep", check_nothing)
    patch.set(f"{LIVE}._follow", check_nothing)
    patch.set(f"{LIVE}.hold", lambda self, holder: None)


def count_no_failures(patch: Patch) -> None:
    patch.set("defserve.auth.failures:FailedTokens.count", lambda self, address, forwarded_for: 0.0)


def slow_addresses_down(patch: Patch) -> None:
    """Where bad tokens came from, good ones are slowed down as well."""
    failed: dict[str, int] = {}

    def make(authenticate: Any) -> Any:
        async def check(self: Any, exchange: Any, scope: Any) -> bool:
            address = str((scope.get("client") or [""])[0])
            if failed.get(address, 0) > 20:
                await exchange.refuse(429, "too many bad tokens came from this address")
                return False
            is_good = await authenticate(self, exchange, scope)
            failed[address] = failed.get(address, 0) + (not is_good)
            return is_good

        return check

    patch.wrap(f"{APP}._authenticate", make)


# -- places ----------------------------------------------------------------------------------------------


def count_no_addresses(patch: Patch) -> None:
    """One address may have every session there is, and none gives way."""
    patch.set("defserve.core.service.sessions:SessionTable._number_at", lambda self, address: 0)
    patch.set("defserve.core.service.sessions:SessionTable._end_one", lambda self, addresses: False)


# -- tokens of issuers, and signing in -------------------------------------------------------------------


def read_tokens_without_checking(patch: Patch) -> None:
    """What a token says is believed: nobody looks at its signature, its audience or its time."""
    patch.wrap(
        "jwt:decode",
        lambda decode: lambda token, *given, **options: decode(token, options={"verify_signature": False}),
    )


def take_any_answer(patch: Patch) -> None:
    """Whatever comes back with a code belongs to this sign-in, and is from its issuer."""
    from urllib.parse import parse_qsl, urlsplit

    flow = "defserve.host.signin.code_flow:Attempt"
    patch.set(f"{flow}.is_answered_by", lambda self, location: True)
    patch.set(f"{flow}.code_in", lambda self, location: dict(parse_qsl(urlsplit(location).query))["code"])


def redirect_anywhere(patch: Patch) -> None:
    patch.set("defserve.auth.proxy.clients.redirects:matches", lambda registered, asked: True)


def obey_everybody(patch: Patch) -> None:
    """Everybody operates a kernel."""
    patch.set("defserve.kernel.governance.operators:is_operator", lambda caller, admins: True)


def obey_nobody(patch: Patch) -> None:
    patch.set("defserve.kernel.governance.operators:is_operator", lambda caller, admins: False)
