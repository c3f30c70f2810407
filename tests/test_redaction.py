from __future__ import annotations

import json
import logging
import subprocess
import sys
from ast import literal_eval
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from defserve.base.redaction import (
    DEPTH,
    ITEMS,
    MAX_REDACTED_TEXT_LENGTH,
    REDACTION_MASK,
    escape_unprintable,
    get_logger,
    is_secret_name,
    redact,
    redact_text,
)
from tests.effort import cpu_within
from tests.rows import for_each_row

CANARY = "hunter2-canary"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"


@dataclass
class Login:
    user: str
    password: str


class Account(BaseModel):
    name: str
    pin_code: SecretStr


class Level(Enum):
    HIGH = "high"


@for_each_row(
    "name",
    [
        *("authorization", "Proxy-Authorization", "token", "accessToken", "refresh_token", "secret", "client_secret"),
        *("api_key", "apiKey", "X-API-Key", "api key", "password", "db_password", "PASSWD", "Cookie", "Set-Cookie"),
        *("aws_access_key", "privateKey", "credentials", "auth", "pwd", "passphrase", "Mcp-Session-Id"),
    ],
)
def test_what_is_kept_under_a_secret_name_is_masked(name: str):
    assert is_secret_name(name)
    assert redact({name: CANARY}) == {name: REDACTION_MASK}
    assert redact({"headers": [{name: [CANARY]}]}) == {"headers": [{name: REDACTION_MASK}]}
    assert redact([(name, CANARY)]) == [[name, REDACTION_MASK]]
    assert redact([(name.encode(), CANARY.encode())])[0][1] == REDACTION_MASK
    assert redact({"name": name, "value": CANARY}) == {"name": name, "value": REDACTION_MASK}


@for_each_row("name", ["author", "key", "keyboard", "passenger", "spinning", "path", "user", "tool_name"])
def test_other_names_show_what_they_hold(name: str):
    assert redact({name: "plain"}) == {name: "plain"}


def test_numbers_of_tokens_are_no_secrets():
    shown = {"max_tokens": 500, "token_count": 3, "has_token": True, "token": None}
    assert redact(shown) == shown
    assert redact({"password": 1234, "tokens": ["a"]}) == {"password": REDACTION_MASK, "tokens": REDACTION_MASK}


@for_each_row(
    ("text", "shown"),
    [
        (f"Authorization: Bearer {CANARY}", f"Authorization: {REDACTION_MASK}"),
        (f'{{"Authorization": "{CANARY}"}}', f'{{"Authorization": {REDACTION_MASK}}}'),
        (f"'Cookie': 'a={CANARY}'", f"'Cookie': {REDACTION_MASK}"),
        (f"sent Bearer {CANARY} to it", f"sent Bearer {REDACTION_MASK} to it"),
        (f"got {JWT}.", f"got {REDACTION_MASK}"),
        (f"key {PEM} end", f"key {REDACTION_MASK} end"),
        (f"db password={CANARY} refused", f"db password={REDACTION_MASK} refused"),
        (f"password: '{CANARY} two words'", f"password: {REDACTION_MASK}"),
        (f'{{"api_key": "{CANARY}", "a": 1}}', f'{{"api_key": {REDACTION_MASK}, "a": 1}}'),
        (f'{{\\"token\\": \\"{CANARY}\\"}}', f'{{\\"token\\": {REDACTION_MASK}}}'),
        (f"postgres://bob:{CANARY}@db/x", f"postgres://{REDACTION_MASK}@db/x"),
        (f"https://e.org/?access_token={CANARY}&a=1", f"https://e.org/?access_token={REDACTION_MASK}&a=1"),
        (f"Cookie: a={CANARY}; b={CANARY}", f"Cookie: {REDACTION_MASK}"),
        ("use ghp_0123456789abcdefghijABCDEFGHIJ012345", f"use {REDACTION_MASK}"),
        ("use sk-proj-0123456789abcdefghij", f"use {REDACTION_MASK}"),
        ("use AKIAIOSFODNN7EXAMPLE now", f"use {REDACTION_MASK} now"),
    ],
)
def test_what_looks_like_a_secret_is_masked_inside_a_text(text: str, shown: str):
    assert redact(text) == shown
    assert redact(redact(text)) == shown


@for_each_row(
    "text",
    ["a basic idea", "the token was refused", "risk_level", "http://example.org:8080/a@b", "12:30:00", "secret", "x=1"],
)
def test_ordinary_text_stays(text: str):
    assert redact(text) == text


def test_a_secret_across_the_edge_of_what_is_shown_is_masked():
    assert "hunter2" not in redact_text("x" * (MAX_REDACTED_TEXT_LENGTH - 15) + f" password={CANARY}")


def test_secret_types_are_masked_wherever_they_are():
    assert redact(SecretStr(CANARY)) == REDACTION_MASK
    assert redact({"a": [SecretStr(CANARY)]}) == {"a": [REDACTION_MASK]}
    assert redact(Login("bob", CANARY)) == {"user": "bob", "password": REDACTION_MASK}
    assert redact(Account(name="bob", pin_code=SecretStr(CANARY))) == {"name": "bob", "pin_code": REDACTION_MASK}


def test_plain_values_say_what_they_are():
    assert redact([1, 1.5, True, None, Level.HIGH, b"12", (1,)]) == [1, 1.5, True, None, "high", "<2 bytes>", [1]]
    id = UUID(int=7)
    assert redact([id, Path("a") / "b", datetime(2026, 1, 2, tzinfo=UTC)])[0] == str(id)
    assert redact(ValueError(f"password={CANARY}")) == f"ValueError: password={REDACTION_MASK}"


def test_an_unknown_object_is_shown_as_its_class_alone():
    class Connection:
        def __str__(self) -> str:
            return CANARY

    assert redact(Connection()) == "<Connection>"


@for_each_row(
    ("text", "shown"),
    [
        ("a\r\nb", "a\\r\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x00\x9b", "\\x00\\x9b"),
        ("a\u2028b\u202eb\ud800", "a\\u2028b\\u202eb\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("grüße 😀", "grüße 😀"),
    ],
)
def test_what_would_not_print_is_escaped(text: str, shown: str):
    assert escape_unprintable(text) == redact(text) == shown
    assert redact({text: 1}) == {shown: 1}


def test_a_traceback_keeps_its_lines():
    assert redact_text("one\ntoken=abcdef\x1b\nthree", multiline=True) == f"one\ntoken={REDACTION_MASK}\nthree"


def test_depth_width_and_length_are_bounded():
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    circle: dict[str, Any] = {}
    circle["me"] = circle
    shown = json.dumps(redact(deep))
    assert shown.count("[") == DEPTH and "nested too deep" in shown
    assert json.dumps(redact(circle)).count("me") == DEPTH
    assert redact(list(range(1_000)))[-1] == f"… {1_000 - ITEMS} more"
    assert redact({str(n): n for n in range(1_000)})["…"] == f"{1_000 - ITEMS} more"
    assert redact("x" * 10_000) == "x" * MAX_REDACTED_TEXT_LENGTH + "… (10000 characters)"
    bush: Any = "leaf"
    for _ in range(6):
        bush = [bush] * 100
    assert len(json.dumps(redact(bush))) < 100_000
    assert redact(10**5_000) == "<integer of 16610 bits>"


def test_a_hostile_object_does_no_harm():
    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError(CANARY)

    class Liar(str):
        def __str__(self) -> str:
            raise RuntimeError

    assert redact({"a": Hostile(), "b": Liar("x"), "c": 1}) == {"a": "<Hostile>", "b": "<Liar>", "c": 1}


@for_each_row(
    "piece",
    ["token", "token=", 'token="', "-----BEGIN PRIVATE KEY-----", "eyJ.", "://:", "Bearer ", "password:\\", "sk-"],
)
def test_hostile_text_is_read_in_linear_time(piece: str):
    text = piece * 20_000
    assert cpu_within(0.2, lambda: redact_text(text))


def test_loggers_keep_their_names_and_have_one_filter():
    assert get_logger() is get_logger() is logging.getLogger("defserve")
    assert get_logger("auth") is logging.getLogger("defserve.auth")
    assert len(get_logger().filters) == 1


def _raise_chained() -> None:
    try:
        raise ConnectionError(f"postgres://bob:{CANARY}@db/x")
    except ConnectionError as first:
        cause = LookupError(f"Authorization: Bearer {CANARY}")
        cause.__context__ = KeyError(f"token={CANARY}")
        cause.add_note(f"password={CANARY}")
        raise ExceptionGroup("several", [ValueError(f"api_key={CANARY}"), first]) from cause


def test_no_handler_gets_an_exception_or_the_secrets_of_its_chain(caplog: pytest.LogCaptureFixture):
    log = get_logger("stores")
    try:
        _raise_chained()
    except ExceptionGroup as error:
        log.exception("it failed: %s", 7)
        log.warning("it failed: %s", 7, exc_info=error)
    for record in caplog.records:
        assert (record.name, record.getMessage(), record.exc_info) == ("defserve.stores", "it failed: 7", None)
        for told in ("in _raise_chained", "ExceptionGroup: several", "LookupError", "KeyError", "ValueError", "@db/x"):
            assert told in (record.exc_text or "")
    assert len(caplog.records) == 2 and "ExceptionGroup" in caplog.text and CANARY not in caplog.text


def test_an_exception_among_the_arguments_is_masked_too(caplog: pytest.LogCaptureFixture):
    get_logger().error("%s is lost: %s", "it", OSError(f"postgres://bob:{CANARY}@db/x\n  fix: look"))
    get_logger().error("%(a)s", {"a": 1})
    assert caplog.messages == [f"it is lost: postgres://{REDACTION_MASK}@db/x\n  fix: look", "1"]
    assert CANARY not in repr(caplog.records[0].args)


def test_a_secret_without_a_look_is_named_by_who_logs_and_not_kept(caplog: pytest.LogCaptureFixture):
    get_logger().error("no", exc_info=KeyError(CANARY), extra={"secrets": [CANARY, ""], "error_id": "7"})
    get_logger().error("no error", extra={"secrets": [CANARY]})
    assert f"KeyError: '{REDACTION_MASK}'" in caplog.text and CANARY not in caplog.text
    assert [CANARY in repr(vars(record)) for record in caplog.records] == [False, False]
    assert vars(caplog.records[0])["error_id"] == "7"


def test_an_exception_that_cannot_be_shown_does_not_fail_who_logs_it(caplog: pytest.LogCaptureFixture):
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError(CANARY)

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"password={CANARY}")

    get_logger().error("no", exc_info=Odd())
    get_logger().error("no: %s", Odd())
    assert caplog.messages[1] == "no: Odd (it cannot be shown)"
    assert "Odd" in (caplog.records[0].exc_text or "") and CANARY not in caplog.text


def test_there_is_no_traceback_without_an_exception_and_none_is_made_for_a_level_that_is_off(
    caplog: pytest.LogCaptureFixture,
):
    class Unread(Exception):
        def __str__(self) -> str:
            raise AssertionError

    caplog.set_level(logging.INFO, "defserve")
    get_logger().info("plain %s", "text")
    get_logger().info("nothing is raised", exc_info=True)
    get_logger().debug("off", exc_info=Unread())
    assert [(record.getMessage(), record.exc_text) for record in caplog.records] == [
        ("plain text", None),
        ("nothing is raised", None),
    ]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner) | st.tuples(inner),
)


@given(ANYTHING)
def test_whatever_goes_in_plain_json_on_one_line_comes_out(value: Any):
    text = json.dumps(redact(value), allow_nan=False, ensure_ascii=False)
    assert escape_unprintable(text) == text
    text.encode()


@given(st.text(max_size=100), st.text(max_size=100))
def test_a_secret_under_its_name_is_gone_whatever_stands_around_it(before: str, after: str):
    assert CANARY not in json.dumps(redact({before: [{"password": CANARY, "x": after}], after: SecretStr(CANARY)}))


def test_importing_it_imports_nothing_of_ours_but_the_table_of_hidden_characters():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import defserve; before = set(sys.modules);"
        "import defserve.base.redaction;"
        "print(sorted(n for n in set(sys.modules) - before if n.startswith(('defserve', 'pydantic'))))"
    )
    path = Path(__file__).parents[1] / "framework"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    allowed = {"defserve.base", "defserve.base.hidden_characters", "defserve.base.redaction"}
    assert set(literal_eval(done.stdout)) <= allowed
