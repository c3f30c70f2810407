"""Every contribution of the client's plug, used by a protocol the package has never heard of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from defserve.client import Answers, Client, ClientExtension
from defserve.client.eras import SessionTerms
from defserve.client.extension import SendParams
from defserve.core.extension import ALL_METHODS
from defserve.core.messages import Request
from defserve.errors import InvalidParams, PeerError, PeerGone, UsageError
from tests.client.links.test_lost_sessions import Forgetful, talking
from tests.client.pretend import STATELESS, Fail, PretendServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

TUNE = "notifications/acme/tune"
PREFIX = "io.modelcontextprotocol/"


class Acme(ClientExtension):
    """Counts on both sides: the server asks for a level, tells of tunes, and gets a note with each call."""

    name = "acme"

    def __init__(self) -> None:
        self.level: int | None = None
        self.journal: list[Any] = []

    def offer(self, era: str) -> Mapping[str, Any]:
        return {"experimental" if era == "handshake" else "extensions": {"acme": {"level": 1}}}

    async def on_agreed(self, terms: SessionTerms) -> None:
        self.level = terms.capabilities.get("acme", {}).get("level")
        self.journal.append("agreed")

    async def on_opened(self) -> None:
        self.journal.append("opened")

    def requests(self) -> Any:
        return {"acme/level": self._answer_level}

    async def _answer_level(self, request: Request) -> Json:
        if "unit" not in request.params:
            raise InvalidParams("Invalid params: unit is missing")
        return {"level": self.level, "unit": request.params["unit"], "id": request.id}

    def notifications(self) -> Any:
        return {TUNE: lambda method, params: self.journal.append((method, params))}

    def around(self) -> Any:
        return {"tools/call": self._with_note, ALL_METHODS: self._counted}

    async def _with_note(self, method: str, send: SendParams, observer: object, params: Mapping[str, Any]) -> Json:
        return {**await send({**params, "acmeNote": "hi"}), "seenBy": self.name}

    async def _counted(self, method: str, send: SendParams, observer: object, params: Mapping[str, Any]) -> Json:
        self.journal.append(method)
        return await send(params)

    def check_result(self, result: Json) -> None:
        if result.get("acmeOver"):
            raise PeerError("acme is over")

    def on_closed(self, gone: PeerGone | None) -> None:
        self.journal.append(("closed", gone.message if gone else None))


eras = pytest.mark.parametrize("era", ["handshake", "stateless"])


def pretend(era: str, **replies: Any) -> PretendServer:
    own = {"server/discover": Fail(-32601)} if era == "handshake" else STATELESS
    return PretendServer({**own, **{name.replace("_", "/"): reply for name, reply in replies.items()}})


@eras
async def test_the_offer_of_each_era_reaches_the_server_beside_the_others(era: str):
    server = pretend(era)
    answers, own = Answers(roots=["file:///a"]), {"experimental": {"own": {}}}
    async with Client(server, extensions=[Acme()], answers=answers, capabilities=own, apps=True):
        sent = server.asked("initialize" if era == "handshake" else "server/discover")[0]
    offered = sent["capabilities"] if era == "handshake" else sent["_meta"][PREFIX + "clientCapabilities"]
    assert offered["experimental" if era == "handshake" else "extensions"]["acme"] == {"level": 1}
    assert "own" in offered["experimental"] and "roots" in offered and len(offered["extensions"]) >= 1


async def test_it_knows_the_terms_before_the_server_hears_that_the_client_is_ready():
    class Curious(Acme):
        async def on_agreed(self, terms: SessionTerms) -> None:
            self.journal.append([message["method"] for message in server.sent][-1])

    server, curious = PretendServer(), Curious()
    async with Client(server, version="2025-11-25", extensions=[curious]):
        assert curious.journal == ["initialize", "opened"]


async def test_a_client_whose_extension_refuses_the_terms_does_not_open():
    class Strict(Acme):
        async def on_agreed(self, terms: SessionTerms) -> None:
            raise PeerError("too little")

    server = PretendServer()
    with pytest.raises(PeerError, match="too little"):
        async with Client(server, version="2025-11-25", extensions=[Strict()]):
            pass
    assert server.closed and server.asked("notifications/initialized") == []


@eras
async def test_a_request_of_the_server_is_answered_by_who_has_its_method(era: str):
    server = pretend(era)
    async with Client(server, extensions=[Acme()]):
        server.say({"id": "a", "method": "acme/level", "params": {"unit": "dB"}})
        server.say({"id": "b", "method": "acme/level", "params": {}})
        server.say({"id": "c", "method": "acme/other"})
        replies = {id: await server.told(lambda m, id=id: m.get("id") == id and "method" not in m) for id in "abc"}
    assert replies["a"]["result"] == {"level": None, "unit": "dB", "id": "a"}
    assert replies["b"]["error"]["code"] == -32602
    assert (replies["c"]["error"]["code"], "does not answer acme/other" in str(replies["c"])) == (-32601, True)


async def test_the_clients_own_methods_win_over_those_of_an_extension():
    server = PretendServer()
    async with Client(server, version="2025-11-25", extensions=[Acme()], methods={"acme/level": lambda params: 7}):
        server.say({"id": "a", "method": "acme/level"})
        assert (await server.told(lambda m: m.get("id") == "a"))["result"] == 7


@eras
async def test_a_notification_is_heard_by_every_extension_that_names_it(era: str):
    server = pretend(era)
    one, other, all_heard = Acme(), Deaf(), list[str]()
    async with Client(server, extensions=[one, other], on_notification=lambda method, _: all_heard.append(method)):
        server.say({"method": TUNE, "params": {"n": 1}})
        server.say({"method": "notifications/acme/other"})
        await until(lambda: len(all_heard) == 2)
        assert [line for line in one.journal if isinstance(line, tuple)] == [(TUNE, {"n": 1})]
        assert [line for line in other.journal if isinstance(line, tuple)] == [(TUNE, {"n": 1})]


@eras
async def test_our_requests_pass_through_the_wrappers_the_last_one_outermost(era: str):
    class Outer(Deaf):
        name = "outer"

    server = pretend(era, tools_call={"content": []}, prompts_list={"prompts": []})
    inner, outer = Acme(), Outer()
    async with Client(server, extensions=[inner, outer]) as client:
        result = await client.call_raw("add")
        await client.prompts()
    assert (result["seenBy"], server.asked("tools/call")[0]["acmeNote"]) == ("outer", "hi")
    assert [line for line in inner.journal if line == "prompts/list"] == ["prompts/list"]


@eras
async def test_a_result_that_an_extension_takes_for_an_error_is_raised_where_a_value_is_made_of_it(era: str):
    server = pretend(era, tools_call={"content": [], "acmeOver": True})
    async with Client(server, extensions=[Acme()]) as client:
        assert (await client.call_raw("add"))["acmeOver"] is True
        with pytest.raises(PeerError, match="acme is over"):
            await client.call("add")


@eras
@pytest.mark.parametrize("leaves", [False, True])
async def test_the_end_is_told_once_and_says_whether_the_server_left(
    era: str, leaves: bool, caplog: pytest.LogCaptureFixture
):
    class Clumsy(Acme):
        name = "clumsy"

        def requests(self) -> Any:
            return {}

        def on_closed(self, gone: PeerGone | None) -> None:
            raise RuntimeError("fell")

    server, acme = pretend(era), Acme()
    async with Client(server, extensions=[Clumsy(), acme]):
        if leaves:
            server.leave(PeerGone("it exited"))
            await until(lambda: acme.journal[-1] != "opened")
    assert acme.journal == ["agreed", "opened", ("closed", "it exited" if leaves else None)]
    assert "clumsy failed at the end" in caplog.text


@pytest.mark.parametrize("can_reopen", [False, True])
async def test_a_lost_session_is_opened_again_only_if_every_extension_can_do_that(can_reopen: bool):
    server, acme = Forgetful(), Acme()
    acme.can_reopen = can_reopen
    async with talking(server, extensions=[acme]) as (client, _):
        server.forget()
        if can_reopen:
            await client.ping()
        else:
            with pytest.raises(PeerGone, match="ended the session"):
                await client.ping()
    assert acme.journal.count("agreed") == 1


def test_two_extensions_that_answer_the_same_request_are_named():
    class Other(Acme):
        name = "other"

    with pytest.raises(UsageError, match="'acme/level' is answered by both acme and other") as caught:
        Client(PretendServer(), extensions=[Acme(), Other()])
    assert "Client(extensions=…)" in str(caught.value)


class Deaf(Acme):
    """The same protocol without an answer of its own, so that a client can have both."""

    name = "deaf"

    def requests(self) -> Any:
        return {}
