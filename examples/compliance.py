"""Compliance (MCPL §15.2): secrets are taken out of what the model says, before anybody reads it.

The hook is blocking: the host waits for it. When it fails the host is told so and decides; it never passes in silence.
"""

import re

from defserve import Server
from defserve.live import FinishedTurn, Rewrite

server = Server("compliance", "1.0.0")
redaction = server.feature_set("compliance.redaction", "Redact secrets and PII from responses")

SECRETS = {
    "api_key": re.compile(r"\bsk-[A-Za-z0-9]{8,}"),
    "email": re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b"),
}


@redaction.after_inference(blocking=True)
def redact(turn: FinishedTurn) -> Rewrite | None:
    text, found = turn.assistant_message, list[dict[str, str]]()
    for kind, secret in SECRETS.items():
        text, count = secret.subn("[REDACTED]", text)
        found += [{"type": kind}] * count
    return Rewrite(text, metadata={"redactions": found}) if found else None


if __name__ == "__main__":
    server.main()
