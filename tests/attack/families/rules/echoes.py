"""A long text in any place of a request makes no long reply: nobody uses a server to send much with little."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.attack.arena import Kind
from tests.attack.controls.rules import repeat_everything, repeat_the_version
from tests.attack.speaking.http import BOTH, Json, Response, request
from tests.attack.speaking.mcp import Caller, message, stateless_params
from tests.attack.trial import Control, Family, Trial
from tests.protocols.test_echoes import HEADERS, LONG, MAX_REPLY, calls, fields

FAMILY = Family("echoes")


def size(response: Response | None) -> int:
    """Bytes of what came back, with its head."""
    return 0 if response is None else len(response.body) + sum(len(k) + len(v) for k, v in response.headers.items())


def expect_short(trial: Trial, told: str, response: Response | None) -> None:
    if trial.expect(response is not None, f"{told}: no answer"):
        length = size(response)
        trial.expect(length <= MAX_REPLY, f"{told}: a reply of {length} bytes")


def requests() -> dict[str, tuple[str, Json]]:
    """A few of each kind: every tool, prompt and resource with a long text in every place."""
    chosen: dict[str, tuple[str, Json]] = {}
    for number, (method, params) in enumerate(calls()):
        chosen[f"{method[:30]} {number}: {json.dumps(params)[:60]}"] = method, params
    return chosen


@FAMILY.attack("in calls", Control(repeat_everything, "a reply of", "resources/read*"))
def _(trial: Trial) -> None:
    caller = Caller(trial.arena.serve(Kind("shop")).place)
    session = caller.open()
    for number, (name, (method, params)) in enumerate(trial.choose(requests())):
        if number % 3 and trial.case == "*":
            continue
        if number % 2:
            response = session.post(message(method, params))
        else:
            headers = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method[:200]}
            response = caller.post(message(method, stateless_params(params, {})), **headers)
        expect_short(trial, name, response)


METHODS = """
tools/list tools/call resources/list resources/read resources/templates/list prompts/list prompts/get ping
completion/complete logging/setLevel resources/subscribe resources/unsubscribe tasks/get tasks/cancel tasks/list
server/discover mgp/tools/discover mgp/audit/query mgp/access/list mgp/permission/request state/rollback
""".split()


def odd_messages() -> Iterator[tuple[str, Json]]:
    """Long texts where a message itself has members, not its params."""
    yield "a long id", {"jsonrpc": "2.0", "id": LONG, "method": "ping"}
    yield "a long version", {"jsonrpc": LONG, "id": 1, "method": "ping"}
    yield "a long member", {"jsonrpc": "2.0", "id": 1, "method": "ping", LONG: LONG}
    yield "params that are a text", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": LONG}
    yield "an error for nobody", {"jsonrpc": "2.0", "id": LONG, "error": {"code": 1, "message": LONG}}
    yield "a result for nobody", {"jsonrpc": "2.0", "id": LONG[:200], "result": {LONG: LONG}}
    yield "no method", {"jsonrpc": "2.0", "id": 1, LONG: 1}


@FAMILY.attack("in any member", Control(repeat_everything, "a reply of", "tools/call: all"))
def _(trial: Trial) -> None:
    caller = Caller(trial.arena.serve(Kind("shop")).place)
    session, names = caller.open(), fields()
    cases: dict[str, Json] = dict(odd_messages())
    for method in METHODS:
        cases[f"{method}: all"] = message(method, {**dict.fromkeys(names, LONG[:8_000])})
        some = trial.random.sample(names, 6)
        cases[f"{method}: lists"] = message(method, {name: [LONG[:8_000]] * 3 for name in some})
        cases[f"{method}: objects"] = message(method, {name: {LONG[:8_000]: LONG[:8_000]} for name in some})
    for name, body in trial.choose(cases):
        expect_short(trial, name, session.post(body))


@FAMILY.attack("in heads and paths", Control(repeat_the_version, "a reply of", "mcp-protocol-version*"))
def _(trial: Trial) -> None:
    place = trial.arena.serve(Kind("shop")).place
    body = json.dumps(message("tools/list", {})).encode()
    cases = {f"{name}, {accept[:9]}": (name, accept) for name in HEADERS for accept in (BOTH, "text/html")}
    for told, (name, accept) in trial.choose(cases):
        expect_short(trial, told, request(place, "POST", "/mcp", {"accept": accept, name: LONG[:7_000]}, body))
    session = Caller(place).open()
    for verb in ("POST", "DELETE"):  # a GET would wait for news
        for name in ("Mcp-Protocol-Version", "Last-Event-Id", "Mcp-Method"):
            sent = session.send(verb, body if verb == "POST" else None, **{name: LONG[:7_000], "Accept": BOTH})
            expect_short(trial, f"{verb} in a session, {name}", sent)
            session = Caller(place).open() if verb == "DELETE" else session
    for path in (f"/{LONG[:7_000]}", f"/mcp/{LONG[:7_000]}", f"/mcp?{LONG[:7_000]}={LONG[:7_000]}"):
        for verb in ("GET", "POST", "DELETE"):
            expect_short(trial, f"{verb} {path[:20]}", request(place, verb, path, {"accept": BOTH}, body))
