"""{{ cookiecutter.description }}"""

import re

from defserve import Server, safe
from defserve.live import FinishedTurn, Rewrite

server = Server("{{ cookiecutter.project_slug }}")
redaction = server.feature_set("compliance.redaction", "Redact secrets and personal data in what the model says")

SECRETS = {
    "api_key": re.compile(r"\bsk-[A-Za-z0-9]{8,}"),
    "email": re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b"),
}


# The host waits for a blocking hook. When it fails the host is told so: nothing passes in silence.
@redaction.after_inference(blocking=True)
def review(turn: FinishedTurn) -> Rewrite | None:
    """Take secrets out of the model's answer before anybody reads it."""
    text, kinds = redacted(turn.assistant_message)
    return Rewrite(text, metadata={"redactions": kinds}) if kinds else None


@server.tool(title="Redact a text")
@safe
def redact(text: str) -> str:
    """Replace secrets and personal data in a text.

    Args:
        text: What may hold some.
    """
    return redacted(text)[0]


def redacted(text: str) -> tuple[str, list[str]]:
    """The text without its secrets, and which kinds there were."""
    kinds: list[str] = []
    for kind, secret in SECRETS.items():
        text, count = secret.subn("[REDACTED]", text)
        kinds += [kind] * count
    return text, kinds


if __name__ == "__main__":
    server.main()
