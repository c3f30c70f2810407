"""A filter: card numbers and e-mail addresses are taken out of what the model says, before anybody reads it."""

import re

from defserve import Server
from defserve.live import FinishedTurn, Rewrite

server = Server("compliance", "1.0.0")
privacy = server.feature_set("compliance.privacy", "Removes card numbers and e-mail addresses from answers")

EMAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
DIGITS = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")


def is_card(text: str) -> bool:
    """Whether the check digit fits (Luhn): other long numbers stay."""
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def redacted(text: str) -> tuple[str, dict[str, int]]:
    cards = [found[0] for found in DIGITS.finditer(text) if is_card(found[0])]
    for card in cards:
        text = text.replace(card, "[card number]")
    text, emails = EMAIL.subn("[e-mail address]", text)
    return text, {"cards": len(cards), "emails": emails}


@privacy.after_inference(blocking=True)
def filter_answer(turn: FinishedTurn) -> Rewrite | None:
    text, counts = redacted(turn.assistant_message)
    return Rewrite(text, metadata=counts) if any(counts.values()) else None


if __name__ == "__main__":
    server.main()
