"""Names a browser or a proxy may be made to use: only the server's own names are served (DNS rebinding)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.attack.arena import Kind, Served
from tests.attack.controls.http import (
    open_the_gate,
    take_any_host,
    take_any_host_in_a_target,
    take_any_origin,
    take_any_type,
)
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire
from tests.attack.speaking.mcp import STATELESS, Caller, message, stateless_params, tool_call, works
from tests.attack.speaking.websocket import WebSocket
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("hosts")
ALL = Kind(options=("--rest", "--legacy-sse", "--metrics"))

Header = tuple[str, str]


def names(served: Served) -> list[str]:
    """Values of Host that are not this server's, though some look like it."""
    port = served.place.port
    return [
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        f"localhost.evil.example:{port}",
        f"evil.example#127.0.0.1:{port}",
        f"127.0.0.1:{port}@evil.example",
        f"user@127.0.0.1:{port}",
        f"127.0.0.1:{port}, evil.example",
        f"evil.example, 127.0.0.1:{port}",
        f"127.0.0.1:{port} evil.example",
        f"127.0.0.1:{port}/evil",
        f"127.0.0.1\\evil.example:{port}",
        f"127.0.0.1:{port}:80",
        "127.0.0.1:",
        "127.0.0.1:x",
        f"2130706433:{port}",
        f"0x7f.1:{port}",
        f"127.1:{port}",
        f"0177.0.0.1:{port}",
        f"0.0.0.0:{port}",
        f"[::ffff:127.0.0.1]:{port}",
        f"[::1%25eth0]:{port}",
        f"127.0.0.1.nip.io:{port}",
        f"localtest.me:{port}",
        f"\xe4localhost:{port}",
        f"127.0.0.1%00.evil.example:{port}",
        "169.254.169.254",
        "*",
        "",
    ]


def targets(served: Served) -> list[tuple[str, str, list[Header]]]:
    """Request targets with a foreign host in them, or of a form that is not for us: (method, target, Host headers)."""
    own, port = served.place.authority, served.place.port
    return [
        ("POST", "http://evil.example/mcp", [("Host", own)]),
        ("POST", f"http://evil.example:{port}/mcp", [("Host", own)]),
        ("POST", "http://evil.example/mcp", [("Host", "evil.example")]),
        ("POST", f"http://{own}/mcp", [("Host", "evil.example")]),
        ("POST", f"http://user@{own}/mcp", [("Host", own)]),
        ("POST", f"http://{own}@evil.example/mcp", [("Host", own)]),
        ("POST", "https://evil.example/mcp", [("Host", own)]),
        ("POST", "HTTP://EVIL.EXAMPLE/mcp", [("Host", own)]),
        ("POST", "ftp://evil.example/mcp", [("Host", own)]),
        ("POST", "//evil.example/mcp", [("Host", own)]),
        ("POST", "///mcp", [("Host", own)]),
        ("POST", "http:///mcp", [("Host", own)]),
        ("POST", "http://[::1/mcp", [("Host", own)]),
        ("POST", "http://evil.example", [("Host", own)]),
        ("POST", "mcp", [("Host", own)]),
        ("POST", "*", [("Host", own)]),
        ("OPTIONS", "*", [("Host", own)]),
        ("CONNECT", "evil.example:443", [("Host", own)]),
        ("CONNECT", own, [("Host", own)]),
        ("POST", "/mcp", []),
        ("POST", "/mcp", [("Host", own), ("Host", "evil.example")]),
        ("POST", "/mcp", [("Host", "evil.example"), ("Host", own)]),
        ("POST", "/mcp", [("Host", own), ("Host", own)]),
    ]


def origins(served: Served) -> list[list[Header]]:
    """What the browser of somebody who visits another page sends along."""
    own, port = served.place.authority, served.place.port
    pages = [
        "https://evil.example",
        "http://evil.example",
        f"http://evil.example:{port}",
        "null",
        "",
        "file://",
        "chrome-extension://abcdefgh",
        f"http://{own}.evil.example",
        f"http://{own}@evil.example",
        f"http://127.0.0.1.evil.example:{port}",
        f"http://{own}, https://evil.example",
        f"http://{own} https://evil.example",
        "http://0.0.0.0",
        f"http://user@{own}",
        "HTTP://EVIL.EXAMPLE",
    ]
    found = [[("Origin", page)] for page in pages]
    found += [[("Origin", f"http://{own}"), ("Origin", "https://evil.example")]]
    found += [[("Origin", "https://evil.example"), ("Origin", f"http://{own}")]]
    found += [
        [("Sec-Fetch-Site", "cross-site")],
        [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "same-origin")],
    ]
    return found


def attempt(served: Served, verb: str, target: str, headers: Sequence[Header], word: str) -> int | None:
    """Send the call; its status. The mark tells whether it ran."""
    body = json.dumps(message("tools/call", stateless_params(tool_call("mark", {"word": word}), {}))).encode()
    usual = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
    usual += [("Mcp-Protocol-Version", STATELESS), ("Mcp-Method", "tools/call"), ("Mcp-Name", "mark")]
    lines = [
        f"{verb} {target} HTTP/1.1",
        *(f"{n}: {v}" for n, v in [*headers, *usual, ("Content-Length", str(len(body)))]),
    ]
    with Wire(served.place) as wire:
        wire.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        answer = wire.response(5, verb=verb)
    return answer.status if answer is not None else None


def refused(trial: Trial, served: Served, verb: str, target: str, headers: Sequence[Header]) -> None:
    word = f"host-{trial.random.randrange(10**12)}"
    status = attempt(served, verb, target, headers, word)
    told = f"{verb} {target} {', '.join(f'{n}: {v}' for n, v in headers)}"
    trial.expect(not served.has_marked(word), f"{told}: the call ran")
    trial.expect(status is None or status >= 400, f"{told}: answered {status}")


def host(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for name in names(served):
        refused(trial, served, "POST", "/mcp", [("Host", name)])
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def target(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for verb, path, headers in targets(served):
        refused(trial, served, verb, path, headers)
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def origin(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for headers in origins(served):
        refused(trial, served, "POST", "/mcp", [("Host", served.place.authority), *headers])
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def every_route(trial: Trial, kind: Kind) -> None:
    """The gate stands before every path and every way in."""
    served = trial.arena.serve(kind)
    word = f"route-{trial.random.randrange(10**12)}"
    body = json.dumps({"word": word}).encode()
    for foreign in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        for verb, path in (
            ("POST", "/tools/mark"), ("GET", "/openapi.json"), ("GET", "/sse"), ("GET", "/metrics"), ("GET", "/mcp"),
            ("DELETE", "/mcp"), ("POST", "/messages?session_id=x"), ("OPTIONS", "/mcp"),
        ):  # fmt: skip
            caller = Caller(served.place, headers=foreign)
            answer = caller.send(verb, body if verb == "POST" else None, path=path, patience=3)
            trial.expect(answer is None or answer.status >= 400, f"{verb} {path} {foreign}: {answer and answer.status}")
        with WebSocket(served.place, foreign) as socket:
            trial.expect(not socket.is_open, f"a WebSocket with {foreign} was opened")
    trial.expect(not served.has_marked(word), "REST: the call ran")


def simple_requests(trial: Trial, kind: Kind) -> None:
    """What a page can send without asking first (no CORS): forms and plain text are not read as messages."""
    served = trial.arena.serve(kind)
    for kind_of_body in (
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain; application/json",
        "application/jsonp", "", "application/json, text/plain",
    ):  # fmt: skip
        word = f"simple-{trial.random.randrange(10**12)}"
        body = json.dumps(message("tools/call", stateless_params(tool_call("mark", {"word": word}), {}))).encode()
        headers = {"Content-Type": kind_of_body, "Mcp-Protocol-Version": STATELESS}
        more = {**headers, "Mcp-Method": "tools/call", "Mcp-Name": "mark"}
        answer = Caller(served.place).send("POST", body, **more)
        trial.expect(not served.has_marked(word), f"Content-Type {kind_of_body!r}: the call ran")
        rest = Caller(served.place).send("POST", json.dumps({"word": word}).encode(), path="/tools/mark", **headers)
        trial.expect(not served.has_marked(word), f"REST with Content-Type {kind_of_body!r}: the call ran")
        for one in (answer, rest):
            allowed = (one.headers if one is not None else {}).get("access-control-allow-origin")
            trial.expect(allowed is None, f"a page may read the answer: Access-Control-Allow-Origin: {allowed}")


attack_http(FAMILY, "foreign hosts", host, controls=[Control(take_any_host, "the call ran")])
attack_http(FAMILY, "request targets", target, controls=[Control(take_any_host_in_a_target, "the call ran")])
attack_http(FAMILY, "origins", origin, controls=[Control(take_any_origin, "the call ran")])
attack_http(FAMILY, "every route", every_route, ALL, controls=[Control(open_the_gate, ": 200$")])
attack_http(
    FAMILY,
    "requests a page may send",
    simple_requests,
    ALL,
    controls=[Control(take_any_type, "the call ran")],
)
