"""A server that decides on proposals: as a person told it, and after a while by itself (MCPx §9.4).

It asks in the chat (`? ID …`), and a person answers there (`yes ID` or `no ID`). What was approved three times is done
without asking, within the bounds of what was approved; a tool that says it is dangerous never is.

`python examples/topic/orchestrator.py --on mcpx+ws://127.0.0.1:8100/ws?topic=demo --token-file orchestrator.token`
"""

from defserve import Server
from defserve.topics import ApprovalRules, Chat, Participant, Proposal

PERSON = "human"

server = Server("orchestrator", "1.0.0")
rules = ApprovalRules()


@server.on_proposal
async def decide(proposal: Proposal, me: Participant) -> bool | None:
    """Do what the rules allow; ask a person about the rest, and leave it open meanwhile."""
    if proposal.target is not None:
        listed = await me.request(proposal.target, "tools/list")
        tool = next((tool for tool in listed["tools"] if tool["name"] == proposal.context), None)
        if rules.approves(proposal, tool):
            me.chat(f"! {proposal.digest} {proposal.context} as always", PERSON)
            return True
    me.chat(f"? {proposal.digest} {proposal.proposer} wants {proposal.context} {proposal.arguments}", PERSON)
    return None


@server.on_chat
async def told(chat: Chat, me: Participant) -> None:
    """A person's word on a proposal, which is remembered. Anybody else's is not heard."""
    word, _, digest = chat.text.partition(" ")
    proposal = next((each for each in me.proposals if each.digest == digest), None)
    if chat.sender != PERSON or word not in ("yes", "no") or proposal is None:
        return
    rules.record(proposal, word == "yes", by=chat.sender)
    if word == "yes":
        await me.fulfil(proposal)
    else:
        me.decline(proposal, "a person said no")


if __name__ == "__main__":
    server.main()
