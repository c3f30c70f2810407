"""Two readings of one stream compared, and why they may differ."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from tests.differential.responses import Reading

Difference: TypeAlias = Literal["we refuse", "we read more", "we split", "read otherwise"]
"""`we refuse`: the other read requests that we refused. `we read more`: the other refused what we read.
`we split`: we read a request where the other waits for the rest of one. `read otherwise`: two different requests."""

NOT_TOLD = b"-"


def compare(ours: Reading, theirs: Reading) -> Difference | None:
    """How they differ; None if they do not."""
    for our, their in zip(ours.requests, theirs.requests, strict=False):
        if not _is_same(our, their):
            return "read otherwise"
    if len(ours.requests) == len(theirs.requests):
        return None
    if len(ours.requests) < len(theirs.requests):
        return "we refuse"
    return "we read more" if theirs.refused else "we split"


def _is_same(our: bytes, their: bytes) -> bool:
    mine, other = our.rsplit(b" ", 1), their.rsplit(b" ", 1)
    return mine[0] == other[0] and (mine[-1] == other[-1] or other[-1] == NOT_TOLD)


def explain(kind: str, peer: str, difference: Difference) -> str | None:
    """Why this difference is right, or harmless. None if nobody has said so."""
    for key in ((kind, peer), (kind, "*"), ("*", peer), ("*", "*")):
        if (reason := _REASONS[difference].get(key)) is not None:
            return reason
    return None


# Kind of stream, peer (`*`: any) → the reason.
_STRICTER = "we read by the grammar of RFC 9112 alone; what it only tolerates is refused"
_AT_ONCE = "the other parses all bytes that came first, and drops the connection with its good requests unanswered"
_REASONS: Final[dict[Difference, dict[tuple[str, str], str]]] = {
    "we refuse": {
        ("*", "*"): _STRICTER,
        ("one request", "nginx"): "nginx answers here without its body, which is cut off",
        ("several in a row", "nginx"): "nginx answers here without the body of the last, which is cut off",
        ("upgrades", "*"): "what came behind an offer to upgrade before its answer is no request to us",
    },
    "we read more": {
        ("changed bytes", "Node"): _AT_ONCE,
        ("changed bytes", "uvicorn, httptools"): _AT_ONCE,
        ("changed bytes", "nginx"): "nginx refuses an empty host; ours is judged by the gate of the app",
        ("changed bytes", "uvicorn, h11"): _AT_ONCE,
        ("connection options", "Node"): "Node drops a connection with bytes behind the last request",
        ("connection options", "uvicorn, httptools"): _AT_ONCE,
        ("hosts", "nginx"): "nginx judges hosts as it parses; ours are judged by the gate of the app",
        ("names and values", "*"): "a value beyond ASCII is a value (RFC 9110 §5.5); what follows it is refused by all",
        ("other codings", "*"): "another name is another header; the chunks behind it are refused by all",
        ("request lines", "*"): "methods in lower case are other methods; an empty line before a request is skipped",
        ("HTTP/2 preface", "*"): _AT_ONCE,
    },
    "we split": {},  # nothing explains it: a request would be smuggled past the other
    "read otherwise": {
        ("request lines", "nginx"): "nginx tells the path of an absolute URI; our app takes it apart later",
        (
            "request lines",
            "uvicorn, httptools",
        ): "httptools tells the path of an absolute URI; our app takes it apart later",
        ("upgrades", "uvicorn, httptools"): "httptools reads no body behind an offer to upgrade, and ends there",
    },
}
