"""The vendors, as data. A vendor with an `issuer` says the rest in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from defserve.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Vendor:
    """Where users sign in. `{tenant}`, `{domain}` and `{issuer}` are filled in by the author.

    `issuer` is an OpenID provider. Without one, `authorize`, `token` and `user` are its addresses, and `user` answers
    with a JSON object about the user. `subject` names the claim that never changes for a user, and `names` those by
    which people know one: only claims that users cannot choose freely. `scopes` are asked for at the vendor, and of
    the `optional_scopes` those that its metadata lists. `more` are further parameters for it.
    """

    title: str
    issuer: str = ""
    authorize: str = ""
    token: str = ""
    user: str = ""
    subject: str = "sub"
    names: tuple[str, ...] = ("sub", "email")
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    method: Literal["basic", "post"] = "post"
    more: Mapping[str, str] = field(default_factory=dict[str, str])
    optional_scopes: tuple[str, ...] = ()


VENDORS: Final[Mapping[str, Vendor]] = {
    "google": Vendor("Google", "https://accounts.google.com", more={"access_type": "offline", "prompt": "consent"}),
    "github": Vendor(
        "GitHub",
        authorize="https://github.com/login/oauth/authorize",
        token="https://github.com/login/oauth/access_token",
        user="https://api.github.com/user",
        subject="id",
        names=("id", "login"),
        scopes=("read:user",),
    ),
    # An Entra user's e-mail address is not verified, so it names nobody.
    "entra": Vendor(
        "Microsoft Entra",
        "https://login.microsoftonline.com/{tenant}/v2.0",
        subject="oid",
        names=("oid", "preferred_username"),
        scopes=("openid", "profile", "email", "offline_access"),
    ),
    "auth0": Vendor("Auth0", "https://{domain}/", scopes=("openid", "profile", "email", "offline_access")),
    "okta": Vendor("Okta", "https://{domain}", scopes=("openid", "profile", "email", "offline_access"), method="basic"),
    # Keycloak renews without `offline_access`; with it, an access would outlive the user's session there.
    "keycloak": Vendor("Keycloak", "{issuer}", method="basic"),
    "oidc": Vendor("your account", "{issuer}", optional_scopes=("offline_access",), method="basic"),
}


def vendor_of(which: str | Vendor, places: Mapping[str, str]) -> Vendor:
    """The vendor with its places filled in. Raises UsageError."""
    vendor = which if isinstance(which, Vendor) else VENDORS.get(which)
    if vendor is None:
        raise UsageError(
            f"OAuthProxy: {which!r} is not a known vendor",
            fix=did_you_mean(str(which), list(VENDORS), f"use one of {', '.join(VENDORS)}, or a Vendor(…)"),
        )
    needs = [name for name in ("tenant", "domain", "issuer") if f"{{{name}}}" in vendor.issuer]
    given = [name for name, value in places.items() if value]
    if needs != given:
        raise UsageError(
            f"OAuthProxy({which!r}): {', '.join(needs) or 'none'} of tenant, domain and issuer belongs to this vendor,"
            f" and {', '.join(given) or 'none'} was given",
            fix=", ".join(f'{name}="…"' for name in needs) or "leave it out",
        )
    return replace(vendor, issuer=vendor.issuer.format(**places))
