"""The playground of the site: the page of the inspector, with a recorded session instead of its socket.

`python -m tests.site.playground` records it: it starts `defserve inspect --web` for docs/playground/garden.py, connects
to its socket as the page does, asks for what the panels ask for, and keeps the answers in docs/playground/session.json.
`make docs` puts the files of the page beside them. `docs/theme/recorded.js` answers from the recording, and nothing
else: what was not recorded is refused with a sentence that says so.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from .places import DOCS, ROOT, SITE, THEME

FOLDER: Final = DOCS / "playground"
SESSION: Final = FOLDER / "session.json"
PAGE: Final = ROOT / "framework/defserve/inspector/page"
ERAS: Final = ("stateless", "handshake")
# The policy of the inspector, without what only a socket or views of apps need.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'"
)
# What a page says where the playground stands, and what the site makes of it.
MARK: Final = "<!-- playground -->"
FRAME: Final = (
    '<p><a href="playground/index.html">Open it in a page of its own</a></p>\n\n'
    '<iframe class="playground" src="playground/index.html" title="The inspector, with a recorded session"></iframe>'
)
BEDS: Final = ("north", "fern", "herbs")
# What happens in the session: it is on the wire, and the state comes from it. The page opens on the last call.
STORY: Final = (
    ("plant", {"bed": "fern", "name": "staghorn"}),
    ("water", {"bed": "herbs", "litres": 2}),
    ("readings", {"bed": "attic", "days": 2}),
    ("forecast", {"days": 3}),
    ("water", {"bed": "herbs", "litres": 5}),
    ("plant", {"bed": "north", "name": "aubergine"}),
    ("readings", {"bed": "north", "days": 2}),
)
# Calls that a reader may make: what their forms can say with a few clicks.
CALLS: Final = (
    *(("readings", {"bed": bed, "days": days}) for bed, days in product(BEDS, range(1, 6))),
    *(("forecast", {"days": days}) for days in range(1, 8)),
    *(("plant", {"bed": bed, "name": "staghorn"}) for bed in BEDS),
    *(("water", {"bed": bed, "litres": litres}) for bed, litres in product(BEDS, range(1, 6))),
)
QUERY: Final = {"filter": "", "kind": "all", "answers": False}
# What shows how things go on: parts come, and no answer.
FOLLOWED: Final = frozenset(("wire.follow", "latency.follow", "state.follow", "kernel.follow"))
QUIET_SECONDS, MAX_SECONDS = 1.0, 30.0


class Recorder:
    """One socket of a page. Keeps each question with its parts and its answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._last = socket, 0
        self.answers: dict[str, dict[str, Any]] = {}

    async def ask(self, verb: str, **arguments: Any) -> Any:
        """What the host answers; of what is followed, the last part."""
        self._last += 1
        await self._socket.send(json.dumps({"id": self._last, "do": verb, "with": arguments}))
        answer: dict[str, Any] = {"parts": []}
        while not {"ok", "error"} & answer.keys():
            try:
                wait = QUIET_SECONDS if verb in FOLLOWED else MAX_SECONDS
                frame = json.loads(await asyncio.wait_for(self._socket.recv(), wait))
            except TimeoutError:
                assert verb in FOLLOWED, f"{verb} {arguments} was not answered"
                await self._socket.send(json.dumps({"do": "cancel", "of": self._last}))
                break
            for message in frame:
                self._take(message, answer)
        self.answers[key_of(verb, arguments)] = answer
        return answer.get("ok", answer["parts"][-1] if answer["parts"] else None)

    def _take(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        if message.get("id") == self._last:
            if "part" in message:
                answer["parts"].append(message["part"])
            else:
                answer |= {name: message[name] for name in ("ok", "error") if name in message}


def key_of(verb: str, arguments: dict[str, Any]) -> str:
    """What a question is found by: recorded.js makes the same of it."""
    return f"{verb} {json.dumps(arguments, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}"


async def record(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    token = parse_qs(parts.query)["token"][0]
    protocols = [Subprotocol("defserve-inspector"), Subprotocol(f"token.{token}")]
    origin = Origin(f"http://{parts.netloc}")
    async with connect(f"ws://{parts.netloc}/socket", subprotocols=protocols, origin=origin, max_size=None) as socket:
        recorder = Recorder(socket)
        era = (await recorder.ask("hello"))["era"] or ERAS[0]
        for each in ERAS:
            await recorder.ask("era.open", era=each)
        for tool, arguments in STORY:
            await recorder.ask("tools.call", era=era, tool=tool, arguments=arguments)
        await _record_panels(recorder, era)
        # Everything after this is not on the wire that is shown.
        for tool, arguments in CALLS:
            await recorder.ask("tools.call", era=era, tool=tool, arguments=arguments)
            await recorder.ask("tools.save", tool=tool, arguments=arguments)
        return recorder.answers


async def _record_panels(recorder: Recorder, era: str) -> None:
    """What each panel asks for when it is opened and when its rows are."""
    for each in ERAS:
        for verb in ("tools.list", "resources.list", "prompts.list", "skills.list", "apps.list", "state.sets"):
            await recorder.ask(verb, era=each)
        for verb in ("tasks.list", "live.overview", "security.overview", "security.health", "latency.follow"):
            await recorder.ask(verb, era=each)
    for verb in ("questions.past", "questions.list", "security.audit", "kernel.follow"):
        await recorder.ask(verb)
    await recorder.ask("resources.read", era=era, uri="garden://rules")
    await recorder.ask("prompts.get", era=era, prompt="plan_week", arguments={})
    for tool in {tool for tool, _ in STORY}:
        await recorder.ask("tools.latency", tool=tool)
    for call in (await recorder.ask("tools.calls"))["calls"]:
        await recorder.ask("tools.follow", call=call["number"])
    await _record_state(recorder, era)
    wire = await recorder.ask("wire.follow", **QUERY)
    rows = (await recorder.ask("wire.rows", **QUERY, start=0, stop=wire["rows"]))["rows"]
    for row in rows:
        await recorder.ask("wire.message", seq=row["seq"])
        if row.get("method") == "tools/call":
            await recorder.ask("wire.eras", seq=row["seq"])
    # As the page is told when it opens later: with what has happened by then.
    await recorder.ask("hello")


async def _record_state(recorder: Recorder, era: str) -> None:
    sets = await recorder.ask("state.sets", era=era)
    for where in [
        {"era": era, "set": kept["name"], "owner": tree["owner"]} for kept in sets["sets"] for tree in kept["trees"]
    ]:
        await recorder.ask("state.follow", **where)
        parts = recorder.answers[key_of("state.follow", where)]["parts"]
        ids = [checkpoint[0] for part in parts for checkpoint in part.get("checkpoints", ())]
        await recorder.ask("state.changes", **where, ids=ids)
        for a, b in product(("", *ids), ids):
            for verb in ("state.diff", "state.lines", "state.content"):
                await recorder.ask(verb, **where, a=a, b=b)


def write(site: Path = SITE) -> None:
    """Put the page, the recording and what answers from it into the site."""
    folder = site / "playground"
    shutil.copytree(PAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.txt"))
    page = re.sub(r'(href|src)="/', r'\1="', (PAGE / "index.html").read_text("utf-8"))
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    instead = '<script src="session.js"></script>\n<script src="recorded.js"></script>\n'
    page = page.replace("<title>", f"{policy}\n<title>", 1).replace(
        '<script src="first.js">', instead + '<script src="first.js">'
    )
    (folder / "index.html").write_text(page, encoding="utf-8")
    recording = f"window.recordedSession = {SESSION.read_text('utf-8').strip()};\n"
    (folder / "session.js").write_text(recording, encoding="utf-8")
    shutil.copy(THEME / "recorded.js", folder / "recorded.js")
    # A worker is found from the page, which stands in a folder here.
    layouts = folder / "panels/state/layouts.js"
    layouts.write_text(layouts.read_text("utf-8").replace('"/panels/', '"panels/'), encoding="utf-8")


def main() -> None:
    command = [sys.executable, "-m", "defserve", "inspect", "garden.py", "--web", "--no-browser"]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = asyncio.run(record(process.stdout.readline().strip()))
        finally:
            process.terminate()
    # In the order in which the host said it: columns of a table have theirs.
    text = json.dumps(dict(sorted(found.items())), ensure_ascii=False, separators=(",", ":"))
    SESSION.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
