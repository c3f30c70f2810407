"""What a host was told, held against what a store has after all that happened to it."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import jsonpatch

from defserve.stores.checkpoints.checkpoint_store import CheckpointStore, read_checkpoint_secret
from defserve.stores.identity import ServerStore, choose_server_identity, open_store
from tests.faults.notebook import Notebook
from tests.faults.process import Broken, Json, complaint

WINDOW = 8


class Add(NamedTuple):
    text: str


class RollBack(NamedTuple):
    checkpoint: str


Asked = Add | RollBack


class Acknowledged:
    """The line of checkpoints one host is on: `tip` is the last it knows, `maybe` what it was never told about.

    Calls on one tree come one after another and rollbacks alone, so what was acknowledged since is one line.
    """

    def __init__(self, keep: int | None = None) -> None:
        self.contents: dict[str, list[str]] = {}
        self.tip: list[str] = []
        self.surely: set[str] = set()
        self.maybe: list[Asked] = []
        self._keep = keep

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, asked: Asked, answer: Json, tolerates: str | None = None) -> None:
        """Raises Broken for an answer that is wrong, or an error that is not tolerated."""
        wrong = complaint(answer)
        if wrong is not None:
            if wrong != tolerates:
                raise Broken(f"{asked} failed: {wrong}")
            self.maybe.append(asked)
        elif isinstance(asked, RollBack):
            self.tip, self.surely = self.contents[asked.checkpoint], set()
        else:
            self._added(asked.text, answer["result"]["state"])

    def _added(self, text: str, state: Json) -> None:
        before = self.contents.get(state["parent"])
        if "data" in state:
            texts = _texts(state["data"])
        elif before is not None:
            document = {"notes": [{"id": n + 1, "text": each} for n, each in enumerate(before)]}
            texts = _texts(jsonpatch.apply_patch(document, state["patch"]))
        else:
            self.surely.add(text)
            return
        if texts[-1:] != [text]:
            raise Broken(f"{state['checkpoint']} ends with {texts[-1:]}, not {text}")
        self.contents[state["checkpoint"]] = texts
        self.surely.add(text)
        if len(texts) > len(self.tip):
            self.tip = texts

    def target(self, random: Random) -> str | None:
        """A checkpoint to go back to."""
        known = self._retained()[-5:]
        return random.choice(known) if known else None

    # -- after the fault ---------------------------------------------------------------------------------

    def check_head(self, texts: list[str]) -> None:
        """Raises Broken if the head is not where it must be; then it is known again."""
        ends = [self.tip, *(self.contents[one.checkpoint] for one in self.maybe if isinstance(one, RollBack))]
        unsure = {one.text for one in self.maybe if isinstance(one, Add)}
        if not any(self._fits(texts, end, unsure, end is self.tip) for end in ends):
            raise Broken(f"the head has {texts[-3:]} at its end, {self.tip[-3:]} was acknowledged")
        self.tip, self.surely, self.maybe = texts, set(), []

    def _fits(self, texts: list[str], end: list[str], unsure: set[str], is_tip: bool) -> bool:
        more = texts[len(end) :]
        surely = self.surely - set(end) if is_tip else set[str]()
        is_known = set(more) <= unsure | surely and surely <= set(more) and len(set(more)) == len(more)
        return texts[: len(end)] == end and is_known

    def check_some(self, notebook: Notebook, random: Random, most: int = 10) -> None:
        """Some checkpoints, through the server. Raises Broken."""
        known = self._retained()
        for id in random.sample(known, min(most, len(known))):
            if notebook.read(checkpoint=id) != self.contents[id]:
                raise Broken(f"the checkpoint {id} has changed")

    async def check_all(self, address: str) -> None:
        """Every checkpoint, in the store itself. Raises Broken."""
        raw = open_store(address)
        store = ServerStore(raw, await choose_server_identity(raw, None))
        try:
            trees = CheckpointStore(store, secret=await read_checkpoint_secret(store) or b"")
            (key,) = await trees.list_trees()
            if wrong := await store.check() + await trees.verify(key):
                raise Broken(f"the store is damaged: {wrong}")
            for id in self._retained():
                if _texts(await trees.load_content(key, id)) != self.contents[id]:
                    raise Broken(f"the checkpoint {id} has changed")
        finally:
            await store.close()

    def _retained(self) -> list[str]:
        """Those that are kept in any case, though all that was under way was committed too."""
        known = list(self.contents)
        return known if self._keep is None else known[-(self._keep - 2 * WINDOW) :]


def _texts(data: Any) -> list[str]:
    return [note["text"] for note in data["notes"]]
