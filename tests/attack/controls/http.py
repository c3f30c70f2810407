"""What servers do over HTTP and WebSocket without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from tests.attack.controls.patching import Patch

GATE = "defserve.transports.http.gate:Gate"


def take_any_host(patch: Patch) -> None:
    patch.set(f"{GATE}._check_host", lambda self, host: None)


def take_any_origin(patch: Patch) -> None:
    patch.set(f"{GATE}._check_origin", lambda self, host, origin: None)


def take_any_target(patch: Patch) -> None:
    """The host in a request's target counts for nothing."""
    patch.set("defserve.transports.http.target:read_target", lambda scope, host: None)


def open_the_gate(patch: Patch) -> None:
    patch.set(f"{GATE}.check", lambda self, host, origin, fetch_site: None)


def take_any_type(patch: Patch) -> None:
    patch.set("defserve.transports.http.headers:is_json", lambda content_type: True)
