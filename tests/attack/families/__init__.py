"""The attacks, one file a family. A file has `FAMILY`, and is named here to take part."""

from __future__ import annotations

from importlib import import_module

from tests.attack.trial import Attack, Family

MODULES = (
    # The longest first, so that it does not run alone at the end.
    "bounds.memory",
    "http.smuggling",
    "http.trailers",
    "http.slow",
    "http.heads",
    "http.hosts",
    "http.half_closed",
    "http.pipelining",
    "http.websocket",
    "identity.self_grants",
    "identity.sessions",
    "identity.throttling",
    "identity.matrix",
    "identity.credentials",
    "identity.strangers_ids",
    "identity.tasks",
    "identity.operators",
    "identity.client_sign_in",
    "identity.signing_in",
    "identity.issued_tokens",
    "bounds.odd_json",
    "bounds.pipes",
    "bounds.odd_ids",
    "tools.commands",
    "tools.sandboxes",
    "tools.shipping",
    "rules.other_servers",
    "rules.brought_state",
    "rules.patterns",
    "rules.unions",
    "rules.echoes",
    "rules.approvals",
    "rules.sign_in_rules",
    "rules.webhooks",
    "rules.guards",
)


def families() -> dict[str, Family]:
    """Every family, by the module that it is in."""
    return {f"{__name__}.{name}": import_module(f"{__name__}.{name}").FAMILY for name in MODULES}


def attacks() -> list[Attack]:
    """Every attack, family by family."""
    return [attack for family in families().values() for attack in family.attacks]
