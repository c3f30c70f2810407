"""Nothing is deleted before a person has seen what it is about. Without a person to ask, nothing is deleted at all."""

from typing import Annotated

from pydantic import BaseModel

from defserve import Context, Server, ToolError, dangerous, moderate

server = Server("mailbox", "1.0.0", confirm="always")

mails = {1: "shop: 20% off", 2: "ann: lunch?", 3: "shop: 30% off", 4: "bob: the report"}


class Deleted(BaseModel):
    numbers: list[int]


@server.tool
@moderate("com.example.mail")
async def delete_mails(sender: Annotated[str, "Whose mails, such as: shop."], ctx: Context) -> Deleted:
    """Delete all mails of a sender, if the person agrees."""
    found = {number: text for number, text in mails.items() if text.startswith(f"{sender}: ")}
    if not found:
        raise ToolError(f"There are no mails from {sender!r}.")
    if not await ctx.confirm(f"Delete {len(found)} mails?\n" + "\n".join(found.values())):
        raise ToolError("The person said no. Nothing was deleted; do not ask again.")
    for number in found:
        mails.pop(number, None)
    return Deleted(numbers=list(found))


@server.tool
@dangerous("com.example.mail")
def empty_mailbox() -> str:
    """Delete all mails."""
    count = len(mails)
    mails.clear()
    return f"{count} mails are gone"


if __name__ == "__main__":
    server.main()
