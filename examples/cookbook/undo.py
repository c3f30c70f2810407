"""A draft that can be undone: each change is a checkpoint, and every client can go back to any of them."""

import os
from typing import Annotated

from pydantic import BaseModel, Field

from defserve import Server, State, ToolError

server = Server("drafts", "1.0.0", store=os.environ.get("DRAFTS_STORE", "sqlite:///drafts.db"))


class Draft(BaseModel):
    text: str = ""


drafts = server.state(Draft, keep=200)
Old = Annotated[str, "A passage that occurs once. If it is empty, the new text is added at the end."]


@server.tool
def replace(old: Old, new: Annotated[str, "What stands there instead."], draft: State[Draft]) -> str:
    """Replace a passage of the draft."""
    if draft.text.count(old) != 1 and old:
        raise ToolError(f"The passage occurs {draft.text.count(old)} times: give one that occurs once.")
    draft.text = draft.text.replace(old, new) if old else draft.text + new
    return draft.text


@server.tool
async def undo(draft: State[Draft]) -> str:
    """Take the last change back. Again: the one before it."""
    return draft.text if await drafts.undo() else "There is nothing to undo."


@server.tool
async def redo(draft: State[Draft]) -> str:
    """Take the last undo back."""
    return draft.text if await drafts.redo() else "There is nothing to redo."


@server.tool
async def versions() -> list[str]:
    """The beginning of each version, the oldest first."""
    checkpoints = await drafts.checkpoints()
    return [f"{number}: {(await drafts.at(each)).text[:60]}" for number, each in enumerate(checkpoints, 1)]


@server.tool
async def restore(version: Annotated[int, Field(ge=1, description="Its number.")], draft: State[Draft]) -> str:
    """Go back to a version. It becomes the newest one, so this can be undone, too."""
    checkpoints = await drafts.checkpoints()
    if version > len(checkpoints):
        raise ToolError(f"There are {len(checkpoints)} versions.")
    draft.text = (await drafts.at(checkpoints[version - 1])).text
    return draft.text


if __name__ == "__main__":
    server.main()
