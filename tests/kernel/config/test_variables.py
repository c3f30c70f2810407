"""`${NAME}` in a server's settings."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from defserve.base.secret_references import SecretReader
from defserve.kernel.config.entries import Hidden, ServerLaunch, UnsetVariable, expand_variables, list_unset_variables
from tests.rows import for_each_row

ENVIRON = {"A": "alpha", "EMPTY": ""}


@for_each_row(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("${A}", "alpha"),
        ("x-${A}-${A}", "x-alpha-alpha"),
        ("${B:-beta}", "beta"),
        ("${B:-}", ""),
        ("${A:-beta}", "alpha"),
        ("${EMPTY}", ""),
        ("$${A}", "${A}"),
        ("$A $", "$A $"),
        ("${not a name}", "${not a name}"),
    ],
)
@pytest.mark.req("MGP-15.2f")
def test_variables_are_filled_in_anywhere(text: str, filled: str) -> None:
    assert expand_variables(text, ENVIRON) == filled


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(UnsetVariable, match="the variable B is not set") as caught:
        expand_variables("${A}${B}", ENVIRON)
    assert caught.value.variable == "B"
    assert list_unset_variables(["${B}", "${C:-x}", "$${D}", "${A}"], ENVIRON) == ["B"]


def test_secrets_that_stand_elsewhere_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("${A} ${command:false}\n")
    secrets = SecretReader(run=lambda words: " ".join(words[1:]).encode())
    text = f"${{A}} ${{file:{tmp_path}/token}} ${{command:echo one 'two three'}} $${{file:/x}}"
    assert expand_variables(text, ENVIRON, secrets) == "alpha ${A} ${command:false} one two three ${file:/x}"
    # Without a reader, nothing is read and nothing is run.
    assert expand_variables("${A} ${command:false}", ENVIRON) == "alpha ${command:false}"


def test_the_value_of_a_variable_names_no_program() -> None:
    def run(words: list[str]) -> bytes:
        raise AssertionError(words)

    environ = {"A": "${command:touch x}"}
    assert expand_variables("${A}", environ, SecretReader(run=run)) == "${command:touch x}"


def test_a_secret_that_was_read_is_hidden_and_the_one_before_it_too(tmp_path: Path) -> None:
    path, secrets = tmp_path / "token", SecretReader()
    launch = ServerLaunch("x", env={"API": f"${{file:{path}}}"})
    for text in ("hunter2-old", "hunter3-newer"):
        path.write_text(text)
        assert launch.fill_variables({}, secrets).env["API"] == text
    hide = launch.make_redactor({}, secrets)
    assert hide("a hunter3-newer b hunter2-old c") == f"a ${{file:{path}}} b [redacted] c"


def test_every_text_of_a_launch_is_filled() -> None:
    launch = ServerLaunch("${A}", ("${A}",), "/${A}", {"K": "${A}"}, "http://${A}", "${A}", {"H": "${A}"}, "call", 1, 2)
    expected = ServerLaunch(
        "alpha", ("alpha",), "/alpha", {"K": "alpha"}, "http://alpha", "alpha", {"H": "alpha"}, "call", 1, 2
    )
    assert launch.fill_variables(ENVIRON) == expected


def test_literal_secrets_of_the_file_are_hidden_too() -> None:
    launch = ServerLaunch("x", env={"API_TOKEN": "hunter22", "MODE": "debug"})
    assert launch.make_redactor({})("hunter22 in debug") == "[redacted] in debug"


def test_a_secret_that_a_variable_has_as_its_default_is_hidden_too() -> None:
    launch = ServerLaunch("x", env={"API_TOKEN": "${TOKEN:-hunter22}", "MODE": "${MODE:-plain}"})
    assert launch.make_redactor({})("hunter22 in plain") == "${TOKEN} in plain"
    assert launch.make_redactor({"TOKEN": "other123"})("other123 in plain") == "${TOKEN} in plain"
    both = ServerLaunch("x", env={"A_TOKEN": "${TOKEN:-hunter22}", "B_TOKEN": "${TOKEN:-hunter33}"})
    assert both.make_redactor({})("hunter22 and hunter33") == "[redacted] and ${TOKEN}"


def test_a_token_is_hidden_without_the_word_before_it() -> None:
    launch = ServerLaunch(url="https://example.org", headers={"Authorization": "Bearer hunter22"})
    assert launch.make_redactor({})("hunter22, Bearer hunter22") == "[redacted], [redacted]"
    launch = ServerLaunch(url="https://example.org", headers={"Authorization": "${AUTH}", "X-Greeting": "${GREETING}"})
    redact = launch.make_redactor({"AUTH": "Bearer hunter22", "GREETING": "good morning"})
    assert redact("hunter22, Bearer hunter22, morning") == "[redacted], ${AUTH}, morning"


def test_a_short_value_is_hidden_only_where_it_stands_alone() -> None:
    hide = Hidden({"PIN": "12"})
    assert hide("12, 123, pin=12") == "${PIN}, 123, pin=${PIN}"


def test_the_longest_value_is_hidden_first() -> None:
    assert Hidden({"A": "secret", "B": "secret-two"})("secret-two secret") == "${B} ${A}"


@given(st.text(min_size=4, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_no_usual_form_of_a_value_is_left(value: str, before: str, after: str) -> None:
    assume(value.strip() and value not in "${NAME}")
    hide = Hidden({"NAME": value})
    for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")):
        assert form not in hide(f"{before}{form}{after}").replace("${NAME}", "")
