"""A fifth protocol, made up for these tests and outside the package: together they use every contribution of the plug.

Acme peers have a level. Tools tagged `level-2` are for peers of level 2 and above; `barred` ones are for nobody.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from defserve import Refused, ToolError
from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import (
    CarriedMessage,
    Carrier,
    Handler,
    Listener,
    Next,
    Offer,
    Provider,
    RequestWrapper,
    Section,
    SectionedExtension,
    SendRequest,
    Stages,
    Wrapper,
    section,
)
from defserve.core.service import Phase
from defserve.core.session import Session
from defserve.errors import MethodNotFound
from defserve.extending import Extension

EXTENSION = "dev.acme/acme"


def handshake_offer(level: int) -> dict[str, Any]:
    """The client capabilities of an Acme peer, in the era of handshakes."""
    return {"experimental": {"acme": {"level": level}}}


def stateless_offer(level: int) -> dict[str, Any]:
    """The same in the era without."""
    return {"extensions": {EXTENSION: {"level": level}}}


class AcmeState:
    """What was agreed with one peer."""

    def __init__(self, level: int) -> None:
        self.level, self.asked = level, 0


class Badge:
    """An injectable: who calls, and at which level."""

    def __init__(self, call: Call) -> None:
        self.principal, self.level = call.principal, level_of(call)


class Note:
    """What a peer wrote on this one request."""

    def __init__(self) -> None:
        self.text: str | None = None


class Acme(Extension):
    """Writes down in `journal` what happens to it."""

    name = "acme"
    opens_with = frozenset({"acme/hello", "notifications/acme/knock"})
    while_draining = frozenset({"acme/level"})
    ahead_of_queue = frozenset({"acme/level"})

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.watched: list[str] = []
        self.negotiated: list[bool] = []
        self.closed: list[Session] = []
        self.phases: list[Phase] = []

    # -- terms

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        if _offered(offer) is None:
            return {}
        return {"extensions": {EXTENSION: {}}} if offer.stateless else {"experimental": {"acme": {}}}

    def negotiate(self, offer: Offer) -> AcmeState | None:
        self.negotiated.append(offer.stateless)
        offered = _offered(offer)
        return None if offered is None else AcmeState(offered.get("level", 0))

    # -- where negotiated

    def methods(self) -> Mapping[str, Handler]:
        return {"acme/hello": self.hello, "acme/level": self.level}

    def hello(self, call: Call, params: Any) -> dict[str, Any]:
        return {"hello": params.get("name", "stranger")}

    async def level(self, call: Call, params: Any) -> dict[str, Any]:
        state: AcmeState = call.terms.states["acme"]
        state.asked += 1
        return {"level": state.level, "asked": state.asked}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/acme/knock": self.knocked, "notifications/acme/tune": self.tuned}

    def knocked(self, session: Session, params: Any) -> None:
        self.journal.append("knock")

    async def tuned(self, session: Session, params: Any) -> None:
        if params.get("level") == "broken":
            raise RuntimeError("a listener that fails")
        self.journal.append(f"tune {params.get('level')}")

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self.around_call, "tools/list": self.around_list}

    async def around_call(self, call: Call, params: Any, next: Next) -> Any:
        call.local(Note).text = params.get("acmeNote")
        return {**await next(call, params), "acmeNote": f"{call.local(Note).text}!"}

    @contextmanager
    def watch_message(self, session: Session, method: str, params: Any, call: Call | None) -> Iterator[None]:
        if not method.startswith(("acme/", "notifications/acme/")):
            yield
            return
        self.watched.append(f"{method} {'asks' if call is not None else 'tells'}")
        try:
            yield
        finally:
            self.watched.append(f"{method} is over")

    def around_requests(self) -> RequestWrapper:
        return self.stamp_request

    async def stamp_request(self, session: Session, method: str, send: SendRequest, params: Any, numbered: Any) -> Any:
        result = await send({**params, "_meta": {"acmeStamp": method}}, numbered)
        return {**result, "acmeSeen": True}

    async def around_list(self, call: Call, params: Any, next: Next) -> Any:
        result = await next(call, params)
        return {**result, "acmeCount": len(result["tools"])}

    # -- always

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        self.phases.append(composition.service.phase)

    def stages(self) -> Stages:
        return Stages(audit=self.audit, admit=self.admit, judge=self.judge, hold=self.hold)

    @asynccontextmanager
    async def audit(self, call: Call, item: Any) -> AsyncIterator[None]:
        self.journal.append("audit")
        try:
            yield
        except BaseException as error:
            self.journal.append(f"audit: {type(error).__name__}")
            if not isinstance(error, ToolError):
                raise
            # Swallowed on purpose: a careless stage must not turn a failure into a success.
        else:
            self.journal.append("audit: done")

    async def admit(self, call: Call, item: Any) -> None:
        self.journal.append("admit")
        if "barred" in item.options.tags:
            raise Refused(f"{item.name} is barred", data={"acme": True})

    def judge(self, call: Call, item: Any, arguments: dict[str, Any]) -> None:
        self.journal.append(f"judge {arguments}")
        if arguments.get("n") == 13:
            raise ToolError("13 is unlucky; choose another")

    @asynccontextmanager
    async def hold(self, call: Call, item: Any, arguments: dict[str, Any]) -> AsyncIterator[None]:
        self.journal.append("hold")
        try:
            yield
        except BaseException as error:
            self.journal.append(f"hold: {type(error).__name__}")
            raise
        else:
            self.journal.append("hold: done")

    def visible(self, call: Call, item: Any) -> bool:
        tags = getattr(item.options, "tags", ())
        return "level-2" not in tags or level_of(call) >= 2

    def view(self, call: Call) -> object:
        return level_of(call)

    def describe(self, item: Any, view: object) -> Mapping[str, Any]:
        return {"_meta": {EXTENSION: {"seenFrom": view}}}

    def injectables(self) -> Mapping[Any, Provider]:
        return {Badge: Badge}

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        self.journal.append("begin")
        yield
        self.journal.append("end")

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        return self._life()

    def session_closed(self, session: Session) -> None:
        self.closed.append(session)


class Locker(Extension):
    """What peers leave in their lockers. `where` says of which server."""

    def __init__(self, where: str) -> None:
        self.where, self.left = where, dict[Session, str]()
        self.journal: list[str] = []

    def methods(self) -> Mapping[str, Handler]:
        return {"acme/locker/fill": self.fill, "acme/locker/look": self.look}

    def fill(self, call: Call, params: Any) -> dict[str, Any]:
        self.left[call.session] = params["thing"]
        return {"filled": self.where}

    def look(self, call: Call, params: Any) -> dict[str, Any]:
        return {"thing": self.left.get(call.session)}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/acme/locker/shake": self.shake}

    def shake(self, session: Session, params: Any) -> None:
        self.journal.append(f"shake {self.left.get(session)}")

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        self.journal.append(composition.service.phase)

    def session_closed(self, session: Session) -> None:
        self.journal.append(f"closed {self.left.pop(session, None)}")

    def credential_ended(self, session: Session, credential: str) -> None:
        self.journal.append(f"ended {credential}")

    def export_state(self, session: Session) -> Mapping[str, Any]:
        return {"locker:thing": self.left[session]} if session in self.left else {}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        if "locker:thing" in kept:
            self.left[session] = kept["locker:thing"]


class Depot(SectionedExtension):
    """Acme's other extension, put together from sections. Peers of level 1 and above have lockers."""

    name = "acme.depot"

    def __init__(self) -> None:
        self.counter = Counter()
        self.permanent = (self.counter,)

    def negotiate(self, offer: Offer) -> AcmeState | None:
        offered = _offered(offer)
        return None if offered is None else AcmeState(offered.get("level", 0))

    @section(
        methods=("acme/locker/fill",),
        at_once=("acme/locker/look",),
        notifications=("notifications/acme/locker/shake",),
        keeps=("locker:",),
        agreed_as="lockers",
    )
    def locker(self) -> Locker:
        return Locker("depot")

    @section(methods=("acme/vault/open",), agreed_as="vault")
    def vault(self) -> Extension | None:
        return None

    def check_method(self, section: Section[Any], call: Call) -> None:
        state: AcmeState = call.terms.states[self.name]
        if section.agreed_as != "lockers" or state.level < 1:
            raise MethodNotFound(f"Method not found: {call.method}")

    def is_notified(self, section: Section[Any], session: Session, method: str, params: Any) -> bool:
        return params.get("how") != "softly"


class Counter(Extension):
    """A section that is always there."""

    def __init__(self) -> None:
        self.count = 0

    def methods(self) -> Mapping[str, Handler]:
        return {"acme/count": self.count_call}

    def count_call(self, call: Call, params: Any) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count}


class Post(Extension):
    """Carries many peers on one pipe: frames are letters with a sender."""

    name = "post"

    def __init__(self) -> None:
        self.desk = PostOffice()

    def carrier(self) -> Carrier:
        return self.desk


class PostOffice:
    """`{"from", "letter", "message" | "event"}` in, `{"to", "answers", "message"}` out."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def unwrap(self, frame: bytes) -> list[CarriedMessage]:
        try:
            letters = json.loads(frame)
        except ValueError:
            return []
        return [
            CarriedMessage(letter["from"], json.dumps(letter["message"]).encode(), letter.get("letter"))
            if "message" in letter
            else CarriedMessage(letter["from"], None, letter.get("letter"), letter["event"])
            for letter in (letters if isinstance(letters, list) else [letters])
        ]

    def wrap(self, data: bytes, peer: str, answers: object | None) -> bytes:
        return json.dumps({"to": peer, "answers": answers, "message": json.loads(data)}).encode()

    def handle_event(self, session: Session, event: object) -> Any:
        self.events.append((session.peer, event))
        if event == "gone":
            session.close()
        return None


def level_of(call: Call) -> int:
    state = call.terms.states.get("acme")
    return state.level if isinstance(state, AcmeState) else 0


def _offered(offer: Offer) -> Mapping[str, Any] | None:
    home, key = ("extensions", EXTENSION) if offer.stateless else ("experimental", "acme")
    found = (offer.capabilities.get(home) or {}).get(key)
    return found if isinstance(found, Mapping) else None
