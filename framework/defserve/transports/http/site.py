"""Pages and endpoints of `Auth.site`. Links of any site lead there, so of the gate only the rule for names holds."""

from __future__ import annotations

from defserve.auth.site import LARGEST_BODY, AuthSite, SiteRequest
from defserve.transports.asgi import Scope
from defserve.transports.http.exchange import Exchange
from defserve.transports.http.gate import Gate
from defserve.transports.networks import network_of


async def answer_site(site: AuthSite, path: str, exchange: Exchange, scope: Scope, gate: Gate, seconds: float) -> None:
    """Answer a request for one of the paths of the site. Its pages judge origins themselves."""
    exchange.read_head()
    refusal = gate.check(exchange.headers.get("host"), None, None)
    if refusal is not None:
        await exchange.refuse(refusal.status, refusal.text)
        return
    try:
        body = await exchange.body(LARGEST_BODY, seconds) if scope["method"] == "POST" else b""
    except TimeoutError:
        body = None
    if body is None:
        if not exchange.gone:
            await exchange.refuse(413, f"The body is larger than {LARGEST_BODY} bytes, or came too slowly")
        return
    client = scope.get("client")
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        # HTTP/2 may send each cookie in a header of its own.
        headers[key] = text if key not in headers else f"{headers[key]}{'; ' if key == 'cookie' else ', '}{text}"
    query = scope.get("query_string", b"").decode("latin-1")
    asked = SiteRequest(scope["method"], path, query, headers, body, network_of(client[0]) if client else "")
    answer = await site.answer(asked)
    sent = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    kinds = [one for one in sent if one[0] == b"content-type"]
    others = [one for one in sent if one[0] != b"content-type"]
    if kinds:
        await exchange.respond(answer.status, answer.body, others, kind=kinds[0])
    else:
        await exchange.respond(answer.status, answer.body, others, plain=True)
