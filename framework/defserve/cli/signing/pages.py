"""What commands print about sign-ins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from defserve.cli.screen.blocks import Block, Line, Table
from defserve.cli.signing.states import SignInState


def sign_ins_page(states: Sequence[SignInState]) -> Block:
    """A table of sign-ins."""
    if not states:
        return Line("You are not signed in anywhere.")
    rows = [(state.server, state.issuer, " ".join(state.scopes), state.until, state.place) for state in states]
    return Table(("server", "issuer", "scopes", "ends", "kept in"), rows, fit=("scopes", "issuer"))


def signed_in_page(name: str, state: SignInState) -> Iterator[Block]:
    """What a person is told after signing in."""
    yield Line("Signed in to ", (name, "bold"), f" ({state.server})")
    yield Line(f"  issuer   {state.issuer}")
    if state.scopes:
        yield Line(f"  scopes   {' '.join(state.scopes)}")
    yield Line(f"  ends     {state.until}")
    yield Line(f"  kept in  {state.place}")
