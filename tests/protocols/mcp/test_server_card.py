"""The profile of a server, and the documents made from it: each fits its rules, and all of them agree."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from defserve import Server
from defserve.protocols.mcp.server_card import (
    CARD_SCHEMA,
    PackageMetadata,
    ServerProfile,
    make_ai_catalog,
    make_card_name,
    make_running_server_profile,
    make_server_card,
    make_server_profile,
)
from defserve.server.page import make_page_content
from defserve.tooling.packaging import project_documents
from defserve.tooling.packaging.project_documents import ProjectFolder, Wheel, make_manifest_json, make_server_json
from tests.rows import for_each_row

ICON = {"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}
INFO: dict[str, Any] = {
    "name": "weather",
    "version": "1.2.0",
    "title": "Weather",
    "description": "Tells the weather.",
    "websiteUrl": "https://example.com/weather",
    "icons": [ICON],
}
REPOSITORY = "https://github.com/ann/weather-mcp"
README = "# Weather\n\n<!-- mcp-name: io.github.ann/weather-mcp -->\n"
PACKAGE = PackageMetadata("The weather of a package", README, {"Repository": REPOSITORY})
ADDRESS = "https://tools.example.com/mcp"

# The card's schema as its text has it: a subset of `server.json`, which has the same rules for the same names.
CARD_MEMBERS = ("name", "title", "description", "version", "websiteUrl", "repository", "icons", "remotes", "_meta")


def card_problems(card: dict[str, Any] | None) -> list[str]:
    path = Path(project_documents.__file__).with_name("server.schema.json")
    rules = json.loads(path.read_text(encoding="utf-8"))
    rules["properties"] = {member: rules["properties"][member] for member in CARD_MEMBERS}
    rules["properties"]["$schema"] = {"const": CARD_SCHEMA}
    validator: Any = Draft202012Validator(rules)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(card)]


def made(info: dict[str, Any] | None = None, package: PackageMetadata | None = PACKAGE) -> ServerProfile:
    return make_server_profile(INFO if info is None else info, package).at_address(ADDRESS)


def test_every_document_says_the_same_of_a_server() -> None:
    project = ProjectFolder(Path(), {"name": "weather-mcp", "urls": PACKAGE.urls}, "hatchling.build")
    wheel = Wheel(Path("w.whl"), "weather-mcp", "1.2.0", PACKAGE.summary, README, {})
    server_json = make_server_json(project, wheel, INFO)
    manifest = make_manifest_json(project, wheel, INFO)
    card = make_server_card(made())
    assert card is not None
    shared = card.keys() & server_json.keys() - {"$schema"}
    assert shared == {"name", "title", "description", "version", "websiteUrl", "repository", "icons"}
    assert {member: card[member] for member in shared} == {member: server_json[member] for member in shared}
    # The manifest has other names for some of them.
    assert (manifest["display_name"], manifest["homepage"]) == (card["title"], card["websiteUrl"])
    assert (manifest["version"], manifest["description"]) == (card["version"], card["description"])
    assert manifest["repository"]["url"] == card["repository"]["url"] == REPOSITORY
    assert manifest["icon"] == card["icons"][0]["src"]
    for document, schema in ((server_json, "server"), (manifest, "manifest")):
        assert list(project_documents.iter_document_schema_problems(document, schema)) == []
    (entry,) = make_ai_catalog(made(), f"{ADDRESS}/server-card")["entries"]
    assert entry["identifier"] == "urn:air:ann.github.io:mcp:weather-mcp"


def test_the_page_says_what_the_card_says() -> None:
    server = Server("weather", "1.2.0", title="Weather", description="Tells <b>it</b>.", website_url="https://e.com/w")
    card = make_server_card(server.mcp.lifecycle.identity.profile.at_address(ADDRESS))
    assert card is not None
    _, reply = make_page_content(server.mcp, everywhere=True).listed(ADDRESS)
    html = reply._page(reply._about).decode()  # pyright: ignore
    assert f"<h1>{card['title']} <small>{card['version']}</small></h1>" in html
    assert card["description"].replace("<", "&lt;").replace(">", "&gt;") in html
    assert f'<a href="{card["websiteUrl"]}" rel=noreferrer>website</a>' in html
    assert f"<code>{card['remotes'][0]['url']}</code>" in html


@pytest.mark.req("MCP-CARD-1")
@for_each_row(
    "info",
    [
        INFO,
        {"name": "w", "version": "0.0.0"},
        {"name": "Wetter für alle / weather", "version": "1!2.0+local.3"},
        {"name": "", "version": "1"},
        {"name": "n" * 500, "version": "1.0", "title": "t" * 500, "description": "d" * 5_000},
        {"name": "w", "version": "1.0", "title": " \n ", "description": "two\nlines\tand more"},
        {"name": "w", "version": "1.0", "websiteUrl": "javascript:alert(1)", "icons": [{"src": "data:image/png,x"}]},
        {"name": "w", "version": "1.0", "icons": [{"src": "http://e.com/i.png"}, {**ICON, "mimeType": "image/tiff"}]},
    ],
)
def test_whatever_an_author_writes_the_card_fits_its_rules(info: dict[str, Any]) -> None:
    for package in (None, PACKAGE):
        card = make_server_card(made(info, package))
        assert card is not None and card_problems(card) == []
        assert "" not in card.values() and "data:" not in json.dumps(card)


@for_each_row("version", ["^1.2.3", "~1.2", ">=1.0", "1.x", "1.*", "latest", "", "1" * 256])
def test_a_version_that_names_no_release_makes_no_card(version: str) -> None:
    assert make_server_card(made({**INFO, "version": version})) is None


@for_each_row(
    ("host", "name"),
    [
        ("tools.example.com", "com.example.tools/weather"),
        ("localhost", "localhost/weather"),
        ("127.0.0.1", "127.0.0.1/weather"),
        ("::1", "localhost/weather"),
        ("", "localhost/weather"),
    ],
)
def test_a_server_in_no_registry_is_named_by_its_host(host: str, name: str) -> None:
    assert make_card_name(host, "weather") == name


@for_each_row("readme", ["mcp-name: no-slash", "mcp-name: a/b/c", f"mcp-name: a/{'b' * 300}"])
def test_a_name_that_no_registry_takes_is_not_in_the_card(readme: str) -> None:
    assert made(INFO, PackageMetadata(readme=readme)).name == "com.example.tools/weather"


def test_a_long_description_is_cut_at_a_word_and_kept_whole_beside_it() -> None:
    text = "Tells the weather of every city " * 8
    profile = made({**INFO, "description": text})
    assert len(profile.description) <= 100 and re.search(r"\w…$", profile.description)
    assert profile.details == text.strip()


def test_a_server_of_a_package_has_its_registry_name_and_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "weather_mcp-1.2.0.dist-info"
    about.mkdir()
    head = f"Name: weather_mcp\nVersion: 1.2.0\nSummary: The weather\nProject-URL: Source, {REPOSITORY}"
    (about / "METADATA").write_text(f"{head}\n\n{README}", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert metadata.version("weather_mcp") == "1.2.0"
    of_package, of_other = (Server("weather", version).identity for version in ("1.2.0", "9.9"))
    for identity in (of_package, of_other):
        monkeypatch.setattr(identity, "_distribution", "weather_mcp.server")
    profile = make_running_server_profile(of_package)
    assert (profile.name, profile.description) == ("io.github.ann/weather-mcp", "The weather")
    assert profile.repository == {"url": REPOSITORY, "source": "github"}
    # A server that tells another version is not what the package has.
    assert make_running_server_profile(of_other).name == ""
