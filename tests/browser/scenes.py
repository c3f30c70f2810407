"""Every panel of the inspector with something in it, and with nothing: all that a person can come to see.

A stage is a server with its inspector; a scene is one thing to be seen there. Each scene is reached from its address in
any window, so that it can be looked at, judged by axe and walked through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from defserve import Server
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.page_server import PAGE_HANDLERS
from defserve.inspector.protocol import PageRequest
from defserve.inspector.session_files import make_session_target, read_session_file
from defserve.inspector.state_trees import make_state_finder
from defserve.serve.lifespans import connect_in_memory
from defserve.tooling.listing import server_listing, to_snapshot
from tests.at_address import fresh
from tests.inspector.beds import greenhouse
from tests.inspector.guarded import audited, guarded
from tests.inspector.library import library
from tests.inspector.lively import lively
from tests.inspector.manuals import manuals
from tests.inspector.workshop import workshop

from .inspecting import ROOT, InspectorBeside, inspector_of, inspector_process, target_of
from .test_inspector_compare import CHOOSE
from .test_inspector_kernel import busy, kernel_beside, ten_minutes
from .test_inspector_latency import timed
from .test_inspector_process import SERVER as FRAGILE
from .test_inspector_process import talkative
from .test_inspector_questions import begin
from .test_inspector_state import plant
from .test_inspector_topics import TopicBeside, topic_beside
from .test_inspector_waterfall import SERVER as SHOP

if TYPE_CHECKING:
    from .chromium import Browser

TOPICS: list[TopicBeside] = []
"""The topic of the stage that is open, if it has one."""
Step = str | Callable[["Browser"], object]


class Scene(NamedTuple):
    """What to do at an address: scripts, each repeated until it is true, and what else a person does."""

    name: str
    place: str
    steps: tuple[Step, ...]


class Stage(NamedTuple):
    open: Callable[[Path], AbstractContextManager[str]]
    scenes: tuple[Scene, ...]


def there(selector: str) -> str:
    return f"!!document.querySelector({selector!r})"


def press(words: str, within: str = "body") -> str:
    """Press the button, tab or row that has these words."""
    kinds = "button, [role=tab], [role=option], [role=row], .wrow"
    every = f"[...document.querySelectorAll({within!r})].flatMap(each => [...each.querySelectorAll({kinds!r})])"
    return f"(each => each && (each.click(), true))({every}.find(each => each.textContent.includes({words!r})))"


def fill(selector: str, text: str) -> Callable[[Browser], None]:
    def type_text(browser: Browser) -> None:
        assert browser.page(f"(each => each && (each.focus(), each.select?.(), true))({_first(selector)})"), selector
        browser.type(text)

    return type_text


def keys(*names: str) -> Callable[[Browser], None]:
    return lambda browser: browser.key(*names)


def _first(selector: str) -> str:
    return f"document.querySelector({selector!r})"


def call(browser: Browser) -> None:
    """Call the tool in view, until this call is over: the results of those before are there, too."""
    said = "document.querySelector('.t-res [role=status]').textContent"
    before = browser.page(f"[{said}]")[0]
    browser.key("Control+Enter")
    assert browser.page(f"{said}.trim() && {said} !== {before!r}"), "the call is not over"


def called(tool: str, outcome: str = "Done") -> tuple[Step, ...]:
    """Call a tool with what its form has. On a phone its result is in view then."""
    words = "document.querySelector('.t-res .progress b')?.textContent"
    return (
        f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}",
        call,
        f"!document.querySelector('.t-res .spin') && {words} === {outcome!r}",
    )


# -- stages ------------------------------------------------------------------------------------------------------------


def in_process(code: str) -> Callable[[Path], AbstractContextManager[str]]:
    """The inspector of a server file, as `defserve inspect --web` starts it."""

    @contextmanager
    def open_stage(folder: Path) -> Generator[str]:
        (folder / "server.py").write_text(code, encoding="utf-8")
        with inspector_process("server.py", cwd=folder) as (address, _):
            yield address

    return open_stage


def of_server(make: Callable[[Path], Server]) -> Callable[[Path], AbstractContextManager[str]]:
    """The inspector of a server in this process, as it begins."""
    return lambda folder: beside(target_of(make(folder)))


@contextmanager
def beside(target: InspectionTarget, *calls: Callable[[InspectorBeside], object]) -> Generator[str]:
    with inspector_of(target) as inspector:
        for call in calls:
            call(inspector)
        yield inspector.url


@contextmanager
def planted(folder: Path) -> Generator[str]:
    server = greenhouse()
    section = server.mcpl.state
    assert section is not None
    target = InspectionTarget(
        "beds.py", ("beds.py",), lambda: connect_in_memory(server.composition), stored=make_state_finder(section)
    )
    with beside(target, plant) as url:
        yield url


@contextmanager
def saved(folder: Path) -> Generator[str]:
    async def save(inspection: Inspection) -> str:
        client = await inspection.client()
        await client.call("add_bed", name="fern")
        await client.call("add_plant", bed="fern", plant="moss")
        await client.call("set_target", bed="fern", wanted=22)
        piece = await PAGE_HANDLERS["session.save"](inspection, PageRequest({}, print))
        text, stop = piece["text"], piece["stop"]
        while (start := piece["next"]) is not None:
            piece = await PAGE_HANDLERS["session.save"](inspection, PageRequest({"start": start, "stop": stop}, print))
            text += piece["text"]
        return text

    path = folder / "greenhouse.defsession"
    with inspector_of(target_of(greenhouse(), "beds.py")) as inspector:
        path.write_text(inspector.run(save), encoding="utf-8")
    session = read_session_file(path)
    try:
        with beside(make_session_target(session)) as url:
            yield url
    finally:
        session.recorder.close()


@contextmanager
def guarded_stage(folder: Path) -> Generator[str]:
    with audited(folder) as log:
        server = guarded(log)
        target = InspectionTarget(
            "greenhouse.py",
            ("greenhouse.py",),
            lambda: connect_in_memory(server.composition),
            "handshake",
            audit=lambda: log,
            server=server,
        )
        with inspector_of(target) as inspector:
            inspector.call("list_sensors")
            yield inspector.url


@contextmanager
def asking(folder: Path) -> Generator[str]:
    with inspector_of(target_of(library())) as inspector:
        calls = [begin(inspector, "stateless", tool) for tool in ("summarize", "enter", "sign_in")]
        yield inspector.url

        async def end(_: Inspection) -> None:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        inspector.run(end)


@contextmanager
def working(folder: Path) -> Generator[str]:
    server, go_on = workshop()

    async def start(inspection: Inspection) -> None:
        for tool, arguments in (("broken", {}), ("quick", {}), ("rebuild", {"index": "books"}), ("clean", {})):
            inspection.tasks.start("stateless", tool, arguments)

    async def end(inspection: Inspection) -> None:
        for each in inspection.tasks.to_wire():
            await inspection.tasks[each["task"]].cancel()
        go_on.set()

    with inspector_of(target_of(server)) as inspector:
        inspector.run(start)
        yield inspector.url
        inspector.run(end)


@contextmanager
def timing(folder: Path) -> Generator[str]:
    def calls(inspector: InspectorBeside) -> None:
        timed(inspector, "survey", *[60.0 + number for number in range(40)], 300.0)
        timed(inspector, "water_bed", *[4.0 * 1.09**number for number in range(60)], failed=9)
        timed(inspector, "read_sensor", *[0.4 * 1.05**number for number in range(9)])

    with beside(target_of(greenhouse()), calls) as url:
        yield url


@contextmanager
def governed(folder: Path) -> Generator[str]:
    with kernel_beside(folder, control=True) as (inspector, kernel):
        inspector.run(lambda inspection: inspection.client())
        inspector.run(lambda _: asyncio.to_thread(ten_minutes, kernel))
        busy(inspector)
        yield inspector.url


@contextmanager
def lively_stage(folder: Path) -> Generator[str]:
    def push(inspector: InspectorBeside) -> None:
        inspector.call("warn", text="Frost tonight, −2 °C")
        inspector.call("call_roof", text="Vent 2 makes a noise again.")

    with beside(target_of(lively(), era="handshake"), push) as url:
        yield url


@contextmanager
def meeting(folder: Path) -> Generator[str]:
    with topic_beside() as topic, inspector_of(target_of(Server("plain"))) as inspector:
        TOPICS.append(topic)
        yield inspector.url
        TOPICS.clear()


@contextmanager
def broken_build(folder: Path) -> Generator[str]:
    async def report(inspection: Inspection) -> None:
        inspection.build.report_problem("calc.py:6", "SyntaxError: invalid syntax", ["def x(:"], is_serving=True)

    with beside(target_of(talkative()), lambda inspector: inspector.run(report)) as url:
        yield url


# -- scenes ------------------------------------------------------------------------------------------------------------

LOADED: Final = "!document.querySelector('main .loading, main .skel')"
WIRE: Final = "document.querySelectorAll('.wrow .w-method').length > 2"
LIST: Final = ".t-list [role=option]"
PANELS: Final = (
    "resources prompts apps tasks skills compare wire questions latency state live security kernel topics".split()
)


def opened(name: str, place: str, *steps: Step) -> Scene:
    return Scene(name, place, (there("main h1"), *steps, LOADED))


def in_wire(name: str, tab: str, tool: str, shown: str) -> Scene:
    """The drawer of a call."""
    return opened(name, f"wire/tool:{tool}", there(".wdrawer"), press(tab, ".wdrawer [role=tablist]"), there(shown))


def join_topic(browser: Browser) -> None:
    (topic,) = TOPICS
    for field, text in (("#t-url", topic.url), ("#t-topic", "demo"), ("#t-token", "t-admin")):
        fill(field, text)(browser)
    browser.key("Enter")
    assert browser.page(there(".tpeople"))
    topic.propose(a=19.9, b=4.2)


def older_snapshot() -> object:
    """What the greenhouse would have listed before some changes that break its clients."""
    listed = server_listing(greenhouse().composition)
    assert listed is not None
    first, second, *_ = listed.tools
    first["inputSchema"]["properties"]["colour"] = {"type": "string"}
    second["description"] = "Something else."
    listed.tools.append({"name": "prune", "description": "Cut it back.", "inputSchema": {"type": "object"}})
    return to_snapshot(listed)


GARDEN: Final = (ROOT / "docs/playground/garden.py").read_text("utf-8")
ANSWER: Final = "No. Alice watered them on Friday and the air is humid."
FILE: Final = CHOOSE % json.dumps(json.dumps(older_snapshot()))

STAGES: Final[dict[str, Stage]] = {
    "garden": Stage(
        in_process(GARDEN),
        (
            opened("tools", "tools/readings", *called("readings")),
            opened("tools-list", "tools", there(LIST)),
            opened(
                "tools-failed",
                "tools/readings",
                there("#arg-days"),
                fill("#arg-days", "x"),
                call,
                "!document.querySelector('.t-res .spin') && !!document.querySelector('.t-res .progress b')",
            ),
            opened("tools-markdown", "tools/forecast", *called("forecast")),
            opened("tools-json", "tools/readings", *called("readings"), press("JSON", ".t-res .seg")),
            opened(
                "model",
                "tools/readings",
                press("Definition", ".t-form"),
                press("Anthropic", ".t-form"),
                there(".t-form .json"),
            ),
            opened(
                "compared",
                "tools/readings",
                *called("readings"),
                *called("readings"),
                "(button => button && (button.click(), true))(document.querySelector('.comparebtn:not(:disabled)'))",
                there(".comparison"),
            ),
            opened("changed", "tools/plant", *called("plant")),
            opened("watered", "tools/water", *called("water")),
            opened("wire", "wire", WIRE),
            in_wire("wire-message", "Message", "readings", ".wdrawer .json"),
            in_wire("wire-eras", "Both eras", "readings", ".wdrawer"),
            in_wire("time-travel", "State", "water", ".travel"),
            opened(
                "palette",
                "tools/readings",
                there(LIST),
                keys("Control+k"),
                there(".palette"),
                fill(".palette input", "wat"),
            ),
            opened(
                "keys",
                "tools/readings",
                there(LIST),
                "(document.activeElement.blur(), true)",
                keys("?"),
                there(".keystable"),
            ),
        ),
    ),
    "everything": Stage(
        in_process((ROOT / "examples/everything.py").read_text("utf-8")),
        (
            opened(
                "logs",
                "tools/count_to",
                there("#arg-last"),
                fill("#arg-last", "400"),
                *called("count_to"),
                there(".logline"),
            ),
        ),
    ),
    "shop": Stage(
        in_process(SHOP),
        (
            opened(
                "waterfall",
                "tools/find_orders",
                *called("find_orders"),
                there(".waterfall tbody tr"),
                "(document.querySelector('.waterfall').scrollIntoView({ block: 'center' }), true)",
            ),
            in_wire("wire-waterfall", "Waterfall", "find_orders", ".waterfall tbody tr"),
        ),
    ),
    "fragile": Stage(
        in_process(FRAGILE),
        (
            opened("traceback", "tools/divide", *called("divide", "Failed"), there(".traceback")),
            opened("crashed", "tools/leave", *called("leave", "Failed"), there(".banner")),
        ),
    ),
    "build": Stage(broken_build, (opened("build-banner", "tools/table", there(".banner")),)),
    "planted": Stage(
        planted,
        (
            opened("state", "state", "document.querySelectorAll('.graph [role=row]').length > 5"),
            opened(
                "state-diff",
                "state",
                "document.querySelectorAll('.graph [role=row]').length > 5",
                "(document.querySelector('.bar.only-m .btn')?.click(), true)",
                "(document.querySelector('.graph [role=row]:nth-child(3)').click(), true)",
                there(".s-diff .op"),
            ),
        ),
    ),
    "saved": Stage(
        saved,
        (
            opened("saved-tools", "tools/add_bed", there(LIST)),
            opened("saved-wire", "wire/tool:add_plant", there(".wdrawer")),
            opened("saved-state", "state", there(".graph [role=row]")),
        ),
    ),
    "guarded": Stage(
        guarded_stage,
        (
            opened("security", "security", there(".perms tbody tr")),
            opened(
                "why",
                "security",
                there(".perms tbody tr"),
                fill("[placeholder^=pipe]", "anonymous"),
                fill("[placeholder=tool]", "open_vents"),
                keys("Enter"),
                there(".whysteps .fix"),
                "(document.querySelector('[placeholder^=pipe]').scrollIntoView(), true)",
            ),
            opened(
                "confirm",
                "tools/open_vents",
                there("#arg-vent"),
                fill("#arg-vent", "2"),
                keys("Control+Enter"),
                there("[role=alertdialog]"),
            ),
        ),
    ),
    "library": Stage(
        asking,
        (
            opened("resources", "resources/library%3A%2F%2Fplan.png", there(".t-form img")),
            opened(
                "prompts",
                "prompts/plan_day",
                there(".t-form input"),
                fill(".t-form input", "Norway"),
                keys("Tab"),
                lambda browser: browser.type("Oslo"),
                keys("Control+Enter"),
                there(".message img"),
            ),
            opened(
                "questions",
                "questions",
                there(LIST),
                f"(document.querySelectorAll({LIST!r})[1].click(), true)",
                there(".t-form .bar .pri"),
            ),
        ),
    ),
    "workshop": Stage(
        working,
        (
            opened(
                "tasks",
                "tasks",
                there(LIST),
                f"(document.querySelector({LIST!r}).click(), true)",
                there(".t-res .question"),
            ),
        ),
    ),
    "timing": Stage(
        timing,
        (
            opened(
                "latency",
                "latency",
                there(".lattable .latrow"),
                "(document.querySelector('.lattable .latrow:last-child').click(), true)",
                there(".l-detail h2"),
            ),
        ),
    ),
    "kernel": Stage(
        governed,
        (
            opened("kernel", "kernel", "document.querySelectorAll('.kt tbody tr').length === 5"),
            opened("kernel-drawer", "kernel/git", there(".klog .kline")),
        ),
    ),
    "lively": Stage(
        lively_stage,
        (
            opened(
                "live",
                "live",
                there(".v-play textarea"),
                fill(".v-play textarea", "Should Alice water the ferns tonight?"),
                keys("Control+Enter"),
                there(".slot .inj"),
            ),
        ),
    ),
    "meeting": Stage(meeting, (opened("topics", "topics", there("#t-url"), join_topic, there(".titem")),)),
    "apps": Stage(
        of_server(lambda _: fresh("weather_app")),
        (
            opened(
                "apps",
                "apps/forecast",
                there("#app-city"),
                fill("#app-city", "Oslo"),
                keys("Control+Enter"),
                "document.querySelector('iframe')?.offsetHeight > 120",
            ),
        ),
    ),
    "skills": Stage(
        of_server(manuals),
        (
            opened(
                "skills",
                "skills",
                there(LIST),
                f"(document.querySelector({LIST!r}).click(), true)",
                there(".t-form [role=option]"),
                "(document.querySelector('.t-form [role=option]').click(), true)",
                "document.querySelector('.t-res').innerText.length > 40",
            ),
        ),
    ),
    "compare": Stage(
        of_server(lambda _: greenhouse()),
        (opened("compare", "compare", there(".p-compare .empty"), FILE, there(".cmpitem")),),
    ),
    "empty": Stage(
        of_server(lambda _: Server("plain", "1")),
        (opened("empty-tools", "tools"), *(opened(f"empty-{panel}", panel) for panel in PANELS)),
    ),
}


def show(browser: Browser, url: str, scene: Scene, width: int, height: int, scheme: str = "light") -> None:
    """Come to a scene in a window of this size."""
    browser.look(width, height, scheme)
    browser.open("about:blank")
    browser.open(f"{url}#{scene.place}")
    for step in scene.steps:
        if callable(step):
            step(browser)
        else:
            assert browser.page(step), f"{scene.name} at {width}: {step}"
