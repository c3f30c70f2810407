from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tests.cli.running import Run

SHOP = "tests.export.shop"


@pytest.mark.req("GGEN-EXP-1", "GGEN-EXP-2")
def test_a_catalogue_is_written_to_a_file(defserve: Run, tmp_path: Path):
    path = tmp_path / "tools.json"
    code, out, err = defserve("export", SHOP, "--format", "catalog", "-o", str(path), "--author", "Eve")
    assert (code, out, err) == (0, "", "")
    made = json.loads(path.read_text(encoding="utf-8"))
    assert made.keys() == {"name", "version", "generated_at", "tools"}
    assert [tool["metadata"]["author"] for tool in made["tools"][:2]] == ["Ada", "Eve"]


@pytest.mark.req("GGEN-EXP-3")
def test_an_openapi_document_is_printed(defserve: Run):
    validate(json.loads(defserve("export", SHOP, "--format", "openapi").out))


def test_the_schemas_are_printed(defserve: Run):
    assert json.loads(defserve("export", SHOP, "--format", "schemas").out)["price"]["input"]["required"] == ["ticker"]


def test_tools_are_printed_as_a_model_sees_them_and_what_is_lost_is_noted(defserve: Run):
    code, out, err = defserve("export", SHOP, "--format", "anthropic")
    assert code == 0 and json.loads(out)[0].keys() == {"name", "description", "input_schema"}
    assert "tokens (characters/4)" in err and "note: Anthropic Messages is not told outputSchema of " in err


@pytest.mark.slow
@pytest.mark.req("MGP-15.3")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([SHOP], ["defserve", "run", SHOP]),
        (["-m", SHOP], ["defserve", "run", "-m", SHOP]),
        (["--", sys.executable, "-m", "defserve", "run", SHOP], [sys.executable, "-m", "defserve", "run", SHOP]),
    ],
)
def test_an_entry_of_mgp_toml_starts_the_server_it_was_made_of(defserve: Run, words: list[str], command: list[str]):
    before = ["export", "--format", "mgp", "--env", "API_KEY"]
    (entry,) = tomllib.loads(defserve(*before, *words).out)["servers"]
    assert [entry["command"], *entry["args"]] == command
    assert entry["mgp"]["permissions_required"] == ["shell.execute"]
    assert entry["env"] == {"API_KEY": "${API_KEY}"}


def test_what_cannot_be_done_is_said(defserve: Run):
    assert defserve("export", SHOP).code == 1
    assert defserve("export", SHOP, "--format", "xml").code == 1
    code, _, err = defserve("export", SHOP, "--format", "mgp", "-o", "/nowhere/at/all")
    assert (code, "cannot write" in err) == (1, True)
