"""What a request shows to prove that its sender has a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ShownProof(NamedTuple):
    """A request as its proof must describe it: method, public URL, and the values of its DPoP headers."""

    method: str
    url: str
    proofs: Sequence[bytes]
