"""A stranger's word can only take away: no road lets somebody without a proven identity grant, confirm or skip.

A road is what a stranger says to get a dangerous tool to run. It is tried on every carrier: HTTP with and without
sessions, WebSocket, HTTP+SSE, REST, batches, a unix socket, a mounted server, and behind forged proxy headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import (
    believe_nobody,
    believe_strangers,
    believe_strangers_unasked,
    enable_for_everybody,
    know_no_users,
    stop_for_everybody,
    take_any_address,
    take_any_local_token,
    take_any_right_for_a_yes,
    take_everybody_for_an_admin,
)
from tests.attack.keys import create
from tests.attack.speaking.conversation import (
    Answer,
    Conversation,
    HttpConversation,
    SocketConversation,
    SseConversation,
    accepted,
    silence,
    yes,
)  # fmt: skip
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import (
    BATCHES,
    SESSION,
    STATELESS,
    Caller,
    message,
    mgp_offer,
    outcome,
    stateless_params,
    tool_call,
)  # fmt: skip
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("self-grants")
TOOLS = ("erase", "wipe", "sure")
"""Neither granted nor confirmed; granted by the operator, not confirmed; asks for a yes inside."""

GRANTS = {"shell.execute": "approved", "memory.write": "approved", "shell": "approved", "*": "approved"}
GRANT_FORMS: list[Json] = [
    {"grants": GRANTS},
    {"grants": {"shell.execute": "approved"}},
    {"request_id": "1", "grants": {"shell.execute": {"granted": True}}, "approved_by": "operator"},
    {"grants": {"shell.execute": {"decision": "approved", "by": "operator", "expires_at": "2099-01-01T00:00:00Z"}}},
    {"grants": {"shell.execute": "approved"}, "agent_id": "local", "principal": "local", "kind": "local"},
]
ELICITATION = {"elicitation": {"form": {}, "url": {}}}
BELIEVED = Control(believe_strangers, ": it ran")
MCPL = {"version": "0.4", "featureSets": True, "pushEvents": True}

Carrier = Callable[[Caller], Conversation]


def offers(version: str) -> dict[str, Json]:
    """What a stranger may claim to speak."""
    mgp = mgp_offer(version)
    old = {"experimental": {"mgp": {"version": "0.3.0", "extensions": ["security", "permissions", "tool_security"]}}}
    return {
        "nothing": {},
        "MGP": mgp,
        "MGP security": mgp_offer(version, "security"),
        "MGP tool_security": mgp_offer(version, "tool_security"),
        "MGP callbacks": mgp_offer(version, "callbacks", "permissions"),
        "experimental MGP": old,
        "elicitation": ELICITATION,
        "MGP and elicitation": {**mgp, **ELICITATION},
    }


def roads(trial: Trial, served: Served, caller: Caller, carrier: Carrier, prefix: str = "", told: str = "") -> None:
    """Every offer with every way of saying yes, in a session."""
    for name, capabilities in offers(SESSION).items():
        with carrier(caller) as talk:
            talk.open(capabilities)
            for tool in TOOLS:
                run(trial, served, talk, prefix + tool, f"{told}{name}, {tool}", answer=yes)
            if "MGP" not in name or "callbacks" in name:
                continue
            for form in GRANT_FORMS:
                for method in ("mgp/permission/grant", "mgp/permission/response"):
                    talk.ask(method, form)
            for asked in (["shell.execute"], ["*"]):
                for method in ("mgp/permission/request", "mgp/permission/await"):
                    talk.ask(method, {"request_id": "r", "permissions": asked, "policy": "auto_approve"})
            for tool in TOOLS:
                run(trial, served, talk, prefix + tool, f"{told}{name}, grants, {tool}", answer=yes)


def run(trial: Trial, served: Served, talk: Conversation, tool: str, told: str, answer: Answer = silence) -> None:
    word = f"{trial.random.randrange(10**12)}"
    claims = {"dev.cloto/mgp/grants": GRANTS, "dev.defserve/grants": GRANTS, "confirmed": True}
    params = {**tool_call(tool, {"word": word}), "_meta": claims, "confirmed": True, "agent_id": "local"}
    said = outcome(talk.ask("tools/call", params, answer))
    trial.expect(not served.has_marked(word), f"{told}: it ran ({said})")


def alone(
    trial: Trial, served: Served, caller: Caller, prefix: str = "", told: str = "", tools: Sequence[str] = TOOLS
) -> None:
    """The same without sessions: grants in `_meta`, answers with the state they belong to, and answers unasked."""
    metas: dict[str, Json] = {"": {}}
    for key in ("dev.cloto/mgp/grants", "dev.defserve/grants", "io.modelcontextprotocol/grants"):
        metas[f"_meta[{key}]"] = {key: GRANTS}
        metas[f"_meta[{key}] granted"] = {key: {"shell.execute": {"granted": True}, "memory.write": {"granted": True}}}
    for name, capabilities in offers(STATELESS).items():
        for how, meta in metas.items():
            for tool in tools:
                label = f"{told}stateless, {name}, {how}, {tool}"
                with_answers(trial, served, caller, prefix + tool, capabilities, meta, label)


def with_answers(
    trial: Trial, served: Served, caller: Caller, tool: str, capabilities: Json, meta: Json, told: str
) -> None:
    word = f"{trial.random.randrange(10**12)}"
    params: Json = tool_call(tool, {"word": word})
    unasked = {key: {"action": "accept", "content": {"value": True}} for key in (f"confirm:{tool}", "confirm")}
    caller.alone("tools/call", {**params, "inputResponses": unasked}, capabilities=capabilities, meta=meta)
    reply = caller.alone("tools/call", params, capabilities=capabilities, meta=meta)
    for _ in range(3):
        result = reply.get("result") or {}
        if result.get("resultType") != "input_required":
            break
        asked: Mapping[str, Any] = result.get("inputRequests") or {}
        answers = {k: {"action": "accept", "content": accepted(q.get("params") or {})} for k, q in asked.items()}
        again = {**params, "inputResponses": answers, "requestState": result.get("requestState")}
        reply = caller.alone("tools/call", again, capabilities=capabilities, meta=meta)
    trial.expect(not served.has_marked(word), f"{told}: it ran ({outcome(reply)})")


@FAMILY.attack("sessions over HTTP", BELIEVED)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind())
    roads(trial, served, Caller(served.place), HttpConversation)


@FAMILY.attack("requests that stand alone", BELIEVED)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind())
    alone(trial, served, Caller(served.place))


@FAMILY.attack("WebSocket", BELIEVED)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind())
    roads(trial, served, Caller(served.place), SocketConversation)


@FAMILY.attack("HTTP+SSE", BELIEVED)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind(options=("--legacy-sse",)))
    roads(trial, served, Caller(served.place), SseConversation)


@FAMILY.attack("a unix socket", BELIEVED)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind(on="unix:{folder}/s"))
    caller = Caller(served.place)
    roads(trial, served, caller, HttpConversation)
    alone(trial, served, caller)


@FAMILY.attack("a mounted server", BELIEVED)
def _(trial: Trial) -> None:
    served, caller, prefix = by_prefix(trial, "mounted")
    roads(trial, served, caller, HttpConversation, prefix)
    alone(trial, served, caller, prefix)


@FAMILY.attack("a server behind another", BELIEVED)
def _(trial: Trial) -> None:
    """A call that is let through starts a process there, so the tool that asks inside is not tried with every grant."""
    served, caller, prefix = by_prefix(trial, "behind")
    roads(trial, served, caller, HttpConversation, prefix)
    alone(trial, served, caller, prefix, tools=TOOLS[:2])
    for name, capabilities in offers(STATELESS).items():
        with_answers(trial, served, caller, f"{prefix}sure", capabilities, {}, f"stateless, {name}, sure")


def by_prefix(trial: Trial, file: str) -> tuple[Served, Caller, str]:
    """A served file with tools of another server, and their prefix."""
    served = trial.arena.serve(Kind(file))
    caller = Caller(served.place)
    listed = [tool["name"] for tool in (caller.alone("tools/list").get("result") or {}).get("tools", [])]
    prefix = next((name.removesuffix("echo") for name in listed if name.endswith("echo") and name != "echo"), "kid_")
    trial.expect(f"{prefix}erase" in listed, f"the mounted tools are not listed: {listed}")
    return served, caller, prefix


@FAMILY.attack("REST", Control(believe_strangers_unasked, "^REST"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind(options=("--rest",)))
    for tool in TOOLS:
        for more in ({}, {"confirmed": True}, {"_meta": {"dev.cloto/mgp/grants": GRANTS}}):
            for headers in ({}, {"X-Mgp-Grants": json.dumps(GRANTS)}, {"X-Forwarded-For": "127.0.0.1"}):
                word = f"{trial.random.randrange(10**12)}"
                caller = Caller(served.place, headers=headers)
                answer = caller.send("POST", {"word": word, **more}, path=f"/tools/{tool}")
                trial.expect(not served.has_marked(word), f"REST {tool} {more} {headers}: {answer and answer.status}")


@FAMILY.attack("batches", Control(believe_strangers, "^batch|it ran$"))
def _(trial: Trial) -> None:
    """Grant and call in one batch, in any order."""
    served = trial.arena.serve(Kind())
    for version in (BATCHES, SESSION):
        for capabilities in (mgp_offer(version), {**mgp_offer(version), **ELICITATION}):
            inside = Caller(served.place).open(capabilities, version)
            for tool in TOOLS:
                word = f"{trial.random.randrange(10**12)}"
                grant = [message("mgp/permission/grant", form, f"g{n}") for n, form in enumerate(GRANT_FORMS)]
                call = message("tools/call", tool_call(tool, {"word": word}), "call")
                told = inside.post([*grant, call, *grant], patience=2)
                trial.expect(not served.has_marked(word), f"batch {version}, {tool}: {told and told.text[-200:]}")
    word = f"{trial.random.randrange(10**12)}"
    params = stateless_params(
        tool_call("erase", {"word": word}), mgp_offer(STATELESS), {"dev.cloto/mgp/grants": GRANTS}
    )
    Caller(served.place).post([message("tools/call", params)], patience=2)
    trial.expect(not served.has_marked(word), "a batch of one that stands alone: it ran")


FORGED: list[dict[str, str]] = [
    {"X-Forwarded-For": value}
    for value in (
        "127.0.0.1", "localhost", "::1", "[::1]", "local", "unix", "", "127.0.0.1, 127.0.0.1", "127.0.0.1:80", "alice",
        "203.0.113.9, 127.0.0.1", "127.0.0.1, 203.0.113.9", "::ffff:127.0.0.1", "0", "unknown", "_hidden",
        "evil.example",
    )
] + [
    {"Forwarded": "for=127.0.0.1;host=localhost;proto=https"},
    {"X-Real-IP": "127.0.0.1"},
    {"X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "unix"},
    {"X-Forwarded-User": "alice", "X-Remote-User": "alice", "Remote-User": "alice"},
    {"Authorization": "Bearer local"},
    {"Authorization": "Bearer "},
]  # fmt: skip


def forged(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for headers in FORGED:
        caller = Caller(served.place, headers=headers)
        for tool in TOOLS:
            for name in ("MGP", "MGP and elicitation"):
                meta = {"dev.cloto/mgp/grants": GRANTS}
                label = f"{headers}, stateless, {name}, {tool}"
                with_answers(trial, served, caller, tool, offers(STATELESS)[name], meta, label)
        with HttpConversation(caller) as talk:
            talk.open(mgp_offer(SESSION))
            talk.ask("mgp/permission/response", GRANT_FORMS[0])
            for tool in TOOLS:
                run(trial, served, talk, tool, f"{headers}, session, {tool}", answer=yes)


FAMILY.add("forged proxy headers", lambda trial: forged(trial, Kind()), BELIEVED)
FAMILY.add("forged headers, --trusted-proxy", lambda trial: forged(trial, Kind(options=("--trusted-proxy",))), BELIEVED)


@FAMILY.attack("addresses that are none", Control(take_any_address, "anonymous:localhost"))
def _(trial: Trial) -> None:
    """A forwarded address is an address: words such as localhost name nobody."""
    import re

    served = trial.arena.serve(Kind(options=("--trusted-proxy",)))
    for headers in FORGED:
        said = outcome(Caller(served.place, headers=headers).call_alone("who"))
        named = re.search(r"anonymous:(\S*)", said)
        good = named is None or bool(re.fullmatch(r"[0-9.]+|[0-9a-f:.]+(/\d+)?", named[1]))
        trial.expect(good and "local" not in said.removeprefix("result: anonymous:"), f"{headers}: {said}")


@FAMILY.attack("shutting the server down", Control(stop_for_everybody, "Conversation: |has ended"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind(options=("--legacy-sse",)))
    caller = Caller(served.place)
    for carrier in (HttpConversation, SocketConversation, SseConversation):
        with carrier(caller) as talk:
            talk.open(mgp_offer(SESSION))
            for params in ({}, {"reason": "kernel_shutdown", "timeout_ms": 0}, {"agent_id": "local"}):
                said = talk.ask("mgp/lifecycle/shutdown", params)
                trial.expect("error" in said, f"{carrier.__name__}: {said}")
            for method in ("notifications/mgp.lifecycle", "mgp/lifecycle/state", "shutdown", "exit"):
                talk.send({"jsonrpc": "2.0", "method": method, "params": {"new_state": "draining"}})
    said = caller.alone("mgp/lifecycle/shutdown", {"timeout_ms": 0}, capabilities=mgp_offer(STATELESS))
    trial.expect("error" in said, f"stateless: {said}")
    trial.expect("still" in outcome(caller.call_alone("echo", text="still")), "the server does not answer any more")


@FAMILY.attack("access entries", Control(take_everybody_for_an_admin, "mgp/access/grant"))
def _(trial: Trial) -> None:
    """mgp/access/grant, with every name a stranger may give itself."""
    served = trial.arena.serve(Kind("guarded"))
    caller = Caller(served.place)
    for agent in ("anonymous:127.0.0.1", "alice", "local", "*", "admin:write"):
        for entry in ({"entry_type": "tool_grant", "tool_name": "reserved"}, {"entry_type": "server_grant"}):
            given = {**entry, "agent_id": agent, "server_id": "guarded", "permission": "allow", "granted_by": "alice"}
            for carrier in (HttpConversation, SocketConversation):
                with carrier(caller) as talk:
                    talk.open(mgp_offer(SESSION, "access_control"))
                    said = talk.ask("mgp/access/grant", given)
                    trial.expect("error" in said, f"mgp/access/grant {given}: {outcome(said)}")
                    word = f"{trial.random.randrange(10**12)}"
                    talk.ask("tools/call", {**tool_call("reserved", {"word": word}), "agent_id": "alice"})
                    trial.expect(not served.has_marked(word), f"after mgp/access/grant {given}: it ran")
            said = caller.alone("mgp/access/grant", given, capabilities=mgp_offer(STATELESS, "access_control"))
            trial.expect("error" in said, f"stateless mgp/access/grant: {outcome(said)}")


@FAMILY.attack("feature sets and scopes", Control(enable_for_everybody, "mcpl .*quiet"))
def _(trial: Trial) -> None:
    """A stranger says that it is a host: it enables what is off, lists scopes, and approves what it asks for itself.

    By that it gets nothing that a stranger who says nothing does not get.
    """
    served = trial.arena.serve(Kind("guarded"))
    caller = Caller(served.place)
    policy = {"enabled": ["*", "quiet", "files.edit"], "scopes": {"files.edit": {"whitelist": ["*", "/**", "/etc/*"]}}}
    for tool, more in (("edit", {"path": "/etc/hosts"}), ("quiet", {})):
        word = f"{trial.random.randrange(10**12)}"
        caller.call_alone(tool, word=word, **more)
        if served.has_marked(word):
            trial.expect(True, "")
            trial.notes.append(f"{tool} runs for strangers who do not speak MCPL")
            continue
        for version in ("0.4", "0.5"):
            offer = {"experimental": {"mcpl": {**MCPL, "version": version}}, **ELICITATION}
            for carrier in (HttpConversation, SocketConversation):
                with carrier(caller) as talk:
                    talk.open(offer)
                    for update in ({}, policy):
                        talk.send({"jsonrpc": "2.0", "method": "featureSets/update", "params": update})
                        word = f"{trial.random.randrange(10**12)}"
                        scope = {"scope": {"label": "/etc/hosts"}, **tool_call(tool, {"word": word, **more})}
                        said = outcome(talk.ask("tools/call", scope, yes))
                        held = not served.has_marked(word)
                        trial.expect(held, f"mcpl {version}, {carrier.__name__}, {tool}: {said}")
            word, meta = f"{trial.random.randrange(10**12)}", {"dev.defserve/featureSets": policy}
            params = tool_call(tool, {"word": word, **more})
            reply = caller.alone("tools/call", params, capabilities=offer, meta=meta)
            trial.expect(not served.has_marked(word), f"stateless mcpl {version}, {tool}: {outcome(reply)}")


@FAMILY.attack("what strangers may still do", Control(believe_nobody, "a known caller with"))
def _(trial: Trial) -> None:
    """So that the rows above mean something: safe tools run, questions are answered, and who is known may say yes."""
    served = trial.arena.serve(Kind())
    caller = Caller(served.place)
    trial.expect("here" in outcome(caller.call_alone("echo", text="here")), "a safe tool does not run")
    with HttpConversation(caller) as talk:
        talk.open(ELICITATION)
        said = outcome(talk.ask("tools/call", tool_call("ask", {}), yes))
        trial.expect("hello" in said, f"ctx.ask of a stranger: {said}")
    keyed = trial.arena.serve(Kind("keyed"))
    for allowed, capabilities in (
        ("ToolInvoke(erase)", {}),
        ("ToolInvoke(*)", ELICITATION),
        ("ToolInvoke(*)", mgp_offer(SESSION)),
    ):
        alice = Caller(keyed.place, create(keyed, "alice", allowed).token)
        for carrier in (HttpConversation, SocketConversation):
            said, ran = erase_as(trial, keyed, carrier(alice), capabilities)
            trial.expect(ran, f"a known caller with {allowed}, {sorted(capabilities)}: {said}")


def erase_as(trial: Trial, served: Served, talking: Conversation, capabilities: Json) -> tuple[str, bool]:
    """What a dangerous call is answered, and whether it ran."""
    word = f"{trial.random.randrange(10**12)}"
    with talking as talk:
        talk.open(capabilities)
        said = outcome(talk.ask("tools/call", tool_call("erase", {"word": word}), yes))
    return said, served.has_marked(word)


@FAMILY.attack("a key for all tools, and nobody to ask", Control(take_any_right_for_a_yes, "a wildcard: "))
def _(trial: Trial) -> None:
    """Whoever wrote a wildcard did not say yes to this tool, and a client that cannot be asked has asked nobody."""
    served = trial.arena.serve(Kind("keyed"))
    bot = Caller(
        served.place, create(served, "bot", "ToolInvoke(*)", "AdminWrite", scopes="erase tool:read:erase").token
    )
    for carrier in (HttpConversation, SocketConversation):
        said, ran = erase_as(trial, served, carrier(bot), {})
        trial.expect(not ran, f"a wildcard: {said}")


@FAMILY.attack("--trust-same-user on a unix socket", Control(know_no_users, "the same user"))
def _(trial: Trial) -> None:
    """The operator's word: now the owner of the process is local."""
    served = trial.arena.serve(Kind(on="unix:{folder}/s", options=("--trust-same-user",)))
    word = f"{trial.random.randrange(10**12)}"
    said = outcome(Caller(served.place).call_alone("erase", word=word))
    trial.expect(served.has_marked(word), f"the same user, trusted by the operator: {said}")


@FAMILY.attack("--local-token", Control(take_any_local_token, "^a wrong key: 200"))
def _(trial: Trial) -> None:
    """The key in the 0600 file makes its holder local. Without it: a stranger. With another: 401."""
    import re
    import stat

    served = trial.arena.serve(Kind(options=("--local-token",)))
    caller = Caller(served.place)
    files = [file for file in trial.arena.folder.rglob("*") if file.is_file() and file not in (served.marks,)]
    secret = [file for file in files if str(served.place.port) in str(file) or "token" in file.name.lower()]
    trial.expect(secret, "no file holds the key")
    keys = list[str]()
    for file in secret:
        mode, parent = stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)
        trial.expect(mode & 0o077 == 0 and parent & 0o077 == 0, f"{file.name}: {mode:o} in a folder of {parent:o}")
        keys += re.findall(r"[A-Za-z0-9_.~-]{20,}", file.read_text(errors="replace"))
    trial.expect(not any(key in served.log for key in keys), "the key is in the log")
    trial.expect("here" in outcome(caller.call_alone("echo", text="here")), "a stranger is refused a safe tool")
    word = f"{trial.random.randrange(10**12)}"
    caller.alone("tools/call", tool_call("erase", {"word": word}), capabilities=mgp_offer(STATELESS), meta={})
    trial.expect(not served.has_marked(word), "without the key a dangerous tool runs")
    for wrong in (
        "x" * 43,
        *[key[:-1] + ("a" if key[-1] != "a" else "b") for key in keys],
        *[key[:20] for key in keys],
    ):
        if wrong in keys:
            continue
        reply = caller.using(token=wrong).call_alone("echo", text="here")
        trial.expect(reply["status"] == 401, f"a wrong key: {reply['status']}")
    ran = False
    for key in keys:
        word = f"{trial.random.randrange(10**12)}"
        caller.using(token=key).call_alone("erase", word=word)
        ran = ran or served.has_marked(word)
    trial.expect(ran, "with the key of the file a dangerous tool does not run")
