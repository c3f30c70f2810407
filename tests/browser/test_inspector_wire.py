"""The Wire panel of the inspector in a real browser: by mouse, by keyboard, in both eras, with 100,000 messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from defserve.client import HttpLink
from defserve.errors import DefserveError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection

from .inspecting import InspectorBeside, inspector_in, inspector_process, looks

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ERAS = ("handshake", "stateless")
ROWS = "[...document.querySelectorAll('.wrow')].filter(each => !each.querySelector('.skel'))"
COUNTED = "document.querySelector('.wcounted').textContent"
DRAWER = "document.querySelector('.wdrawer')"
TAB = ".wdrawer [role=tab]:nth-child({})"


# The greenhouse without permissions: over HTTP, and without a login, nobody may grant any.
SERVER = """
import asyncio
from typing import Annotated
from pydantic import Field
from defserve import Context, Server, ToolError, moderate, safe

server = Server("greenhouse", "0.4.2")

@server.tool
@safe
def list_sensors() -> list[str]:
    "All sensors and when each last reported."
    return ["north-1 basil", "north-1 thyme", "fern maidenhair"]

@server.tool
@moderate
async def survey(ctx: Context, beds: int) -> str:
    "Read every sensor of some beds."
    ctx.log.info("station north answered, 5 sensors")
    for bed in range(beds):
        await asyncio.sleep(0.06)
        ctx.progress(bed + 1, total=beds, message=f"Reading north-{bed + 1}")
    await asyncio.sleep(0.04)
    return "warm"

@server.tool
def forecast(days: Annotated[int, Field(ge=1, le=14)] = 3) -> str:
    "The weather for the next days."
    return "mild"

@server.tool
@safe
def find_plant(name: str) -> str:
    "Where a plant stands."
    raise ToolError(f"there is no {name}", fix="plant it first")

if __name__ == "__main__":
    server.main()
"""


def ends(words: str) -> str:
    """The row that is about these words."""
    return f"{ROWS}.find(each => each.innerText.includes({words!r}))"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the greenhouse is served over HTTP, by a process of its own."""
    file = tmp_path_factory.mktemp("wire") / "greenhouse.py"
    file.write_text(SERVER, encoding="utf-8")
    command = (sys.executable, str(file), "--on", "http://127.0.0.1:0/mcp")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(line for line in process.stderr if line.startswith("serving on ")).split()[-1]
        process.terminate()


def call(inspector: InspectorBeside, *calls: tuple[str, dict[str, Any]], eras: tuple[str, ...] = ERAS) -> None:
    """Call tools in each era, whatever comes of it."""

    async def work(inspection: Inspection) -> None:
        for era in eras:
            client = await inspection.client(era)
            for tool, arguments in calls:
                try:
                    await client.request(
                        "tools/call", {"name": tool, "arguments": arguments}, on_progress=lambda *_: None
                    )
                except DefserveError:
                    pass

    inspector.run(work)


@pytest.fixture
def panel(browser: Browser, url: str) -> Iterator[InspectorBeside]:
    """The panel of an inspector, with some messages in both eras."""

    @asynccontextmanager
    async def link() -> AsyncGenerator[HttpLink]:
        yield HttpLink(url)

    async def clear(inspection: Inspection) -> None:
        for era in ERAS:
            await inspection.client(era)
        inspection.timeline.clear()

    with inspector_in(browser, InspectionTarget(url, (url,), link, "handshake"), "blob:") as inspector:
        inspector.run(clear)
        call(inspector, ("list_sensors", {}), ("forecast", {"days": 99}), ("survey", {"beds": 3}), ("forecast", {}))
        browser.look(1440, 900)
        browser.open(f"{inspector.url}#wire")
        assert browser.page(f"{ROWS}.length > 8")
        yield inspector


def choose_from_menu(browser: Browser, words: str) -> None:
    """Open the menu Save, and choose the item with these words."""
    browser.press(".wirebar .menu > button")
    assert browser.page(
        f"[...document.querySelectorAll('[role=menuitem]')].find(e => e.innerText.includes({words!r}))?.click() ?? true"
    )


def choose(browser: Browser, words: str) -> None:
    """Click the row that is about these words."""
    browser.page("document.querySelector('[data-it]')?.removeAttribute('data-it') ?? true")
    assert browser.page(f"{ends(words)}?.scrollIntoView() ?? true")
    assert browser.page(f"(each => each && (each.setAttribute('data-it', ''), true))({ends(words)})")
    browser.press("[data-it] .w-method")
    assert browser.page(f"{DRAWER} && document.querySelector('.wrow.on')?.innerText.includes({words!r})")


def test_the_axis_says_when_it_begins_and_how_far_it_goes(browser: Browser, panel: InspectorBeside):
    words = "[...document.querySelectorAll('.whead svg text')].map(each => each.textContent)"
    assert browser.page(f"{words}.length > 1")
    first, *others = browser.page(words)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", first)
    assert all(re.fullmatch(r"\+[\d.]+ (ms|s|min)", each) for each in others), others


def test_by_mouse_a_message_its_answer_both_eras_and_headers(browser: Browser, panel: InspectorBeside):
    browser.press(".wirebar [role=radio]:nth-child(4)")
    assert browser.page(f"{ROWS}.length === 2 && {ROWS}.every(each => each.innerText.includes('refused'))")
    browser.press(".wirebar [role=radio]:nth-child(1)")
    choose(browser, "list_sensors")
    assert browser.page(f"{DRAWER}.querySelector('.json')?.textContent.includes('list_sensors')")
    browser.press(TAB.format(2))
    assert browser.page(f"{DRAWER}.innerText.includes('Answer') && {DRAWER}.querySelectorAll('.json').length === 2")
    browser.press(TAB.format(3))
    sides = f"[...{DRAWER}.querySelectorAll('.eras > div')].map(each => each.innerText)"
    left, right = browser.page(f"{DRAWER}.querySelectorAll('.dd').length > 4 && {sides}")
    assert "mcp-session-id" in left and "io.modelcontextprotocol/protocolVersion" in right
    assert "mcp-session-id" not in right and "io.modelcontextprotocol" not in left
    assert browser.page(f"{DRAWER}.querySelectorAll('.gapl').length > 2")
    # Lines that are opposite each other are at the same height.
    tops = "[...each.querySelectorAll('.l')].map(one => one.getBoundingClientRect().top).join()"
    assert browser.page(f"new Set([...{DRAWER}.querySelectorAll('.eras > div')].map(each => {tops})).size === 1")
    browser.press(TAB.format(4))
    assert browser.page(f"{DRAWER}.innerText.toLowerCase().includes('mcp-protocol-version')")
    # All messages of the id under the pointer light up.
    choose(browser, "survey")
    browser.press(".wdrawer [aria-label=Close]")
    browser.hover("[data-it] .w-method")
    assert browser.page("document.querySelectorAll('.wrow.lit, .wrow.on').length > 2")
    # A span of the overview, and all again.
    whole = browser.page(COUNTED)
    browser.drag(".mini", 0.0, 0.002)
    browser.drag(".mini", 0.5, 0.9)
    assert browser.page(f"{COUNTED} !== {whole!r} || document.querySelector('.wlist .empty')")
    browser.page("document.querySelector('.mini').dispatchEvent(new MouseEvent('dblclick', {bubbles: true})) || true")
    assert browser.page(f"{COUNTED} === {whole!r}")
    # Answers in rows of their own.
    before = browser.page(f"{COUNTED}.split(' ')[0]")
    browser.press(".wirebar .toggle")
    assert browser.page(f"{COUNTED}.split(' ')[0] > {before} && {ROWS}.some(each => each.innerText.includes('answer'))")
    browser.press(".wirebar .toggle")


def test_what_is_not_safe_is_asked_about_before_it_is_sent_again(browser: Browser, panel: InspectorBeside):
    choose(browser, "survey")
    before = panel.inspection.recorder.count
    browser.press(".dtabs [aria-label='Send again in both']")
    assert browser.page("document.querySelector('[role=alertdialog]')?.innerText.includes('is marked moderate')")
    assert browser.page("document.activeElement.textContent === 'Leave it'")
    browser.key("Escape")
    assert browser.page("!document.querySelector('[role=alertdialog]')")
    calls = [each for each in panel.inspection.recorder.get_messages(before, 10**9) if each.method == "tools/call"]
    assert calls == []
    browser.press(".dtabs [aria-label='Send again in both']")
    browser.press("[role=alertdialog] .btn.danger")
    assert browser.page(f"{DRAWER}.querySelector('[aria-selected=true]').innerText.includes('difference')")
    calls = [
        each
        for each in panel.inspection.recorder.get_messages(before, 10**9)
        if each.method == "tools/call" and each.kind == "request"
    ]
    assert {each.era for each in calls} == set(ERAS)


@pytest.mark.slow
def test_a_message_of_one_era_is_sent_in_both(browser: Browser, panel: InspectorBeside):
    call(panel, ("forecast", {"days": 7}), eras=("stateless",))
    assert browser.page(f"{ends('forecast')} && {ROWS}.at(-1) && true")
    browser.key("/")
    assert browser.page("!!document.activeElement.closest('.filter')")
    browser.type("tool:forecast era:stateless")
    browser.key("Enter")
    assert browser.page(f"{ROWS}.length === 3")
    browser.press(".wrow:nth-child(3) .w-method")
    browser.press(TAB.format(3))
    assert browser.page(f"{DRAWER}.innerText.includes('never sent in the handshake era')")
    browser.press(".wdrawer .empty .btn")
    browser.press("[role=alertdialog] .btn.danger")  # nobody marked it
    assert browser.page(f"!{DRAWER}.querySelector('.empty') && {DRAWER}.querySelectorAll('.dd').length > 2")
    # The era switch of the page also switches the filter.
    assert browser.page("document.querySelector('.filter input').value === 'tool:forecast era:stateless'")
    browser.page("document.activeElement.blur() || true")
    browser.key("e")
    assert browser.page("document.querySelector('.top [aria-checked=true]').textContent === 'Stateless'")
    browser.key("e")
    assert browser.page("document.querySelector('.filter input').value === 'tool:forecast era:handshake'")


@pytest.mark.slow
def test_by_keyboard_alone(browser: Browser, panel: InspectorBeside):
    browser.key("/")
    assert browser.page("!!document.activeElement.closest('.filter')")
    browser.type("me")
    assert browser.page("document.querySelector('#filter-found')?.innerText.includes('method:')")
    browser.key("ArrowDown", "Enter")
    assert browser.page("document.querySelector('.filter input').value === 'method:'")
    browser.type("call")
    assert browser.page(f"{ROWS}.length === 8")
    # Pasted, because each letter of a word on its way is a filter of its own.
    browser.page("document.execCommand('insertText', false, ' tol:x')")
    assert browser.page("document.querySelector('.filter .wrong')?.textContent === 'tol:'")
    assert browser.page("document.querySelector('#filter-problem').innerText.includes('write tool:')")
    # The list stays as it was.
    browser.type("y")
    assert browser.page(f"document.querySelector('.filter .wrong') && {COUNTED}.startsWith('8 of ')")
    browser.key("Backspace", "Backspace", "Backspace", "Backspace", "Backspace", "Backspace")
    assert browser.page(f"!document.querySelector('#filter-problem') && {ROWS}.length === 8")
    browser.key("Escape", "Enter")
    browser.page("document.activeElement.blur() || true")
    browser.key("j", "j", "ArrowDown")
    assert browser.page("document.querySelector('.wrow.on')?.getAttribute('aria-rowindex') === '3'")
    browser.key("Enter")
    assert browser.page(f"{DRAWER}?.innerText.includes('tools/call')")
    browser.key("ArrowUp")
    assert browser.page(f"{DRAWER}.innerText.includes('forecast')")
    browser.key("c")
    assert browser.page("document.querySelector('.toast')?.innerText.includes('Copied')")
    browser.key("Escape")
    assert browser.page(f"!{DRAWER} && document.activeElement.getAttribute('role') === 'grid'")
    # While it is paused nothing moves; new rows are counted.
    browser.key("p")
    assert browser.page("document.querySelector('.wirebar').innerText.includes('Go on')")
    call(panel, ("forecast", {}), eras=("stateless",))
    assert browser.page("document.querySelector('.wirebar').innerText.includes('1 new')")
    assert browser.page(f"{ROWS}.length === 8")
    browser.key("p")
    assert browser.page(f"{ROWS}.length === 9")
    # Arrows on the overview choose a span.
    browser.page("document.querySelector('.mini').focus() || true")
    browser.key("ArrowLeft", "ArrowRight")
    assert browser.page("!!document.querySelector('.mini .chosen')")
    browser.key("Escape")
    assert browser.page("!document.querySelector('.mini .chosen')")


def test_the_timeline_is_saved_and_cleared(browser: Browser, panel: InspectorBeside):
    # The file goes to a link that is clicked: what it holds is read from there.
    browser.page(
        "window.made = [], URL.createObjectURL = (make => blob => (made.push(blob), make(blob)))"
        "(URL.createObjectURL.bind(URL)), true"
    )
    recorder = panel.inspection.recorder
    browser.press("[title^='What the inspector sends']")
    assert browser.page(f"{ROWS}.some(each => each.innerText.includes('tools/list'))")
    # Messages go on while it is saved: all that were there before are in the file, each once.
    first, before = recorder.first, recorder.count
    choose_from_menu(browser, "JSON lines")
    text = browser.page("(async () => made.length > 0 && made.at(-1).text())()")
    lines = [json.loads(line) for line in text.split("\n") if line]
    saved = [line["seq"] for line in lines]
    assert len(set(saved)) == len(saved) and {*range(first, before)} <= set(saved)
    assert "body" in lines[0]
    browser.page(
        "[...document.querySelectorAll('.wirebar .btn')].find(each => each.innerText === 'Clear').click() ?? true"
    )
    # What the inspector sends meanwhile may come at once.
    assert browser.page(f"!{ends('list_sensors')}")
    call(panel, ("forecast", {}), eras=("stateless",))
    assert browser.page(f"{ends('forecast')} && true")


@pytest.mark.slow
def test_from_a_call_to_its_messages(browser: Browser, panel: InspectorBeside):
    browser.open(f"{panel.url}#wire/tool:survey")
    assert browser.page(f"{ROWS}.length === 2 && {DRAWER}?.innerText.includes('Answer')")
    seq = panel.inspection.recorder.count - 1
    browser.page(f"location.hash = '#wire/{seq}'")
    assert browser.page("document.querySelector('.filter input').value === ''")
    browser.key("Control+k")
    assert browser.page("!!document.activeElement.closest('.palette')")
    browser.type("survey")
    assert browser.page(
        "[...document.querySelectorAll('.found [role=option]')].some(e => e.innerText.includes('message'))"
    )
    browser.key("Escape")


@pytest.mark.pictures
@pytest.mark.slow
def test_it_fits_every_window_in_both_themes(browser: Browser, panel: InspectorBeside):
    for look in looks(browser, f"{panel.url}#wire", f"{ROWS}.length > 8"):
        look.fits()
        assert browser.page("(each => each.scrollWidth <= each.clientWidth)(document.querySelector('.virtual'))")
        assert browser.page("document.querySelector('.wcounted').getBoundingClientRect().width > 20")
        choose(browser, "list_sensors")
        for tab in (1, 2, 4, 3):
            browser.press(TAB.format(tab))
            assert browser.page(f"!!{DRAWER}.querySelector('.json, .headers, .code')"), tab
            look.fits()
        look.is_fine()
        look.picture("wire")


FLOOD = """
from defserve import Context, Server

server = Server("flood", "1")

@server.tool
async def flood(ctx: Context, count: int) -> int:
    import asyncio
    for number in range(count):
        ctx.progress(number, total=count, message=f"step {number}")
        if number % 100 == 0:
            await asyncio.sleep(0)
    return count
"""
# Enough that what the page keeps of the few is a small part of them, as of the many.
FEW, MESSAGES = 20_000, 100_000
STEPS = 60
A_SCREEN = 300
# Scroll, and now and then jump far away; how many nodes were touched. Each step ends when the rows in view are drawn: a
# busy machine would else leave some of them out, now in one run and now in the other.
SCROLL = f"""(async () => {{
  const list = document.querySelector(".virtual");
  let touched = 0;
  const watch = new MutationObserver(all => {{ touched += all.length; }});
  watch.observe(document.body, {{ subtree: true, childList: true, attributes: true, characterData: true }});
  for (let step = 0; step < {STEPS}; step++) {{
    list.scrollTop = step % 10 ? list.scrollTop + 180 : list.scrollHeight * (step * 7 % {STEPS}) / {STEPS};
    await new Promise(requestAnimationFrame);
    do await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    while (list.querySelector(".skel"));
  }}
  watch.disconnect();
  return touched;
}})()"""
# One call with 900 notices, which come in batches.
BATCH = """(async () => {
  const { ask } = await import("/socket.js");
  let touched = 0;
  const watch = new MutationObserver(all => { touched += all.length; });
  watch.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  await ask("tools.call", { tool: "flood", arguments: { count: 900 } });
  await new Promise(done => setTimeout(done, 300));
  watch.disconnect();
  return touched;
})()"""
FILL = """(async () => {
  const { ask } = await import("/socket.js");
  while (parseInt((window.told ?? { messages: 0 }).messages) < %d) {
    await ask("tools.call", { tool: "flood", arguments: { count: 900 } });
    window.told = (await ask("hello")).status;
  }
  return true;
})()"""


class Work(NamedTuple):
    """What the page did while the list was scrolled and a batch came: nodes touched, and how long its tasks took."""

    scrolled: int
    batch: int
    tasks: list[float]
    scripts: list[float]


def work_with(browser: Browser, messages: int) -> Work:
    for share in range(1, 11):
        assert browser.page(FILL % (messages * share // 10))
    assert browser.page(f"parseInt({COUNTED}.replaceAll(',', '')) > {messages} * 0.95")
    browser.trace()
    scrolled, batch = browser.page(SCROLL), browser.page(BATCH)
    traced = browser.traced()
    return Work(scrolled, batch, sorted(traced["tasks"]), sorted(traced["scripts"]))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # to send so many takes minutes of a busy machine
def test_with_100_000_messages_it_stays_responsive_and_small(
    browser: Browser, tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "flood.py").write_text(FLOOD, encoding="utf-8")
    with inspector_process("flood.py", cwd=tmp_path) as (address, process):
        browser.look(1440, 900)
        browser.open(f"{address}#wire")
        assert browser.page("document.querySelector('.wlist .empty')?.innerText.includes('No call yet')")
        few, many = (work_with(browser, messages) for messages in (FEW, MESSAGES))
        assert browser.page(f"{ROWS}.length > 20 && document.querySelectorAll('.wrow').length < 120")
        memory = Path(f"/proc/{process.pid}/status")
        resident = int(memory.read_text().partition("VmRSS:")[2].split()[0]) // 1024 if memory.exists() else 0
        browser.key("/")
        assert browser.page("!!document.activeElement.closest('.filter')")
        browser.type("99 not:is:error")
        assert browser.page("/^[1-9][0-9,]* of/.test(document.querySelector('.wcounted').textContent)")
        assert browser.complaints() == []
        browser.open("about:blank")
    slowest = many.tasks[-max(1, len(many.tasks) // 200)]
    told = (
        f"99.5 % of tasks under {slowest:.0f} ms, slowest script {many.scripts[-1]:.0f} ms, a scroll touches "
        f"{many.scrolled // STEPS} nodes ({few.scrolled // STEPS} with {FEW:,}), 900 messages {many.batch} "
        f"({few.batch}); inspector {resident} MB"
    )
    with capsys.disabled():
        print(f"\n{MESSAGES:,} messages: {told}")
    record_property("wire", told)
    # Processor time, because a busy machine is not a slow page.
    assert slowest < 50 and many.scripts[-1] < 50
    # The work depends on what is in view, not on how much there is.
    assert many.scrolled < 1.5 * few.scrolled and many.batch < max(2 * few.batch, A_SCREEN)
    assert resident < 200
