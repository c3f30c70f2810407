from __future__ import annotations

import pytest

from defserve.client import Mcpl
from defserve.live import Turn
from defserve.testing import SyncClient
from examples.cookbook import compliance
from tests.rows import for_each_row

TURN = Turn(inference_id="i", conversation_id="c", user_message="How do I pay?")


@pytest.mark.eras("handshake")
@pytest.mark.serves(mcpl=Mcpl(audit=[]))
def test_what_nobody_should_read_is_taken_out_of_the_answer(client: SyncClient):
    reviewed = client.mcpl.after_inference(TURN, "Use 4111 1111 1111 1111 and write to ada@example.com.")
    assert reviewed.text == "Use [card number] and write to [e-mail address]."
    (rewrite,) = reviewed.rewrites
    assert rewrite.metadata == {"cards": 1, "emails": 1}
    harmless = client.mcpl.after_inference(TURN, "Order 1234567890123456 is paid.")
    assert (harmless.text, harmless.rewrites) == ("Order 1234567890123456 is paid.", ())


@for_each_row(
    ("text", "expected"),
    [
        ("5500-0000-0000-0004!", "[card number]!"),
        ("4111111111111111, 4111111111111111", "[card number], [card number]"),
        ("a@b.c and d.e+f@g-h.co.uk", "[e-mail address] and [e-mail address]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("@ada, see a@b", "@ada, see a@b"),
        ("x" * 50_000 + "@" + "y" * 50_000, "x" * 50_000 + "@" + "y" * 50_000),
    ],
)
def test_only_cards_and_addresses_are_taken_out(text: str, expected: str):
    assert compliance.redacted(text)[0] == expected
