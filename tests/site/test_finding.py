"""The search of the site, on a few pages: what a question finds, and what the index is given besides the pages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .finding import WORKER, collect_asked, collect_links, words, write
from .markdown import anchor, headings
from .pages import UNSEARCHED, Pages
from .questions import find_pages

MIN_ASKED = 10
GUIDES = ["Guides"]
ITEMS = [
    ("caching.html", GUIDES, "Caching", "<p>Cache expensive answers for a while.</p>"),
    ("caching.html#expiry", GUIDES, "Expiry", "<p>An answer is forgotten after a minute.</p>"),
    ("permissions.html", GUIDES, "Permissions", "<p>Callers have rights, and tools require rights.</p>"),
    ("sign-in.html", GUIDES, "Sign-in", "<p>People sign in with their account.</p>"),
    ("openapi.html", GUIDES, "OpenAPI", "<p>Turn an API into tools with <code>Server.from_openapi</code>.</p>"),
    ("limits.html", GUIDES, "Limits", "<p>Nothing here about other subjects, except permissions and timeouts.</p>"),
    ("operations.html", GUIDES, "Logging", "<p>A server has a writer for its log.</p>"),
    ("messages.html", GUIDES, "Messages", "<p>What to do about each.</p>"),
    (
        "messages.html#no-right",
        GUIDES,
        "<code>&lt;file&gt;: tool '&lt;name&gt;' has no rights, and callers sign in with &lt;account&gt;</code>",
        "<p>Give it some.</p>",
    ),
    ("messages.html#late", GUIDES, "<code>no rights in time</code>", "<p>Try again.</p>"),
    ("commands.html", GUIDES, "Terminal", "<p>With <code>defserve cache</code>, expire what is kept.</p>"),
    ("reference/operations.html", ["Reference"], "Logging, LogWriter", "<p>LogWriter: logging and writing.</p>"),
    ("reference/auth.html", ["Reference"], "Permissions", "<p>Callers have rights, and tools require rights.</p>"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site as the generator writes it, with our search."""
    tmp_path = tmp_path_factory.mktemp("site")
    items: list[dict[str, Any]] = [
        {"location": location, "level": 2 if "#" in location else 1, "title": title, "text": text, "path": path}
        for location, path, title, text in ITEMS
    ]
    return write_site(tmp_path, items)


def write_site(folder: Path, items: list[dict[str, Any]]) -> Path:
    (folder / "search.json").write_text(json.dumps({"config": {}, "items": items}))
    (folder / WORKER).mkdir(parents=True)
    (folder / WORKER / "search.0.js").touch()
    write(Pages(), folder)
    return folder


FOUND_FIRST = {
    "caching": "caching",
    "How do I cache an answer?": "caching",
    "cachign": "caching",
    "permisions": "permissions",
    "perm": "permissions",
    "login": "sign-in",
    "signin": "sign-in",
    "swagger": "openapi",
    "open api": "openapi",
    "from_openapi": "openapi",
    "it timed out": "limits",
    "LogWriter": "reference/operations",
    "LoggingWriter": "operations",
    "how to sign in with keycloak": "sign-in",
}


def test_a_question_finds_the_page_that_is_about_it_first(site: Path):
    found = find_pages(list(FOUND_FIRST), site)
    assert {question: pages[0] for question, pages in found.items()} == FOUND_FIRST


def test_a_guide_comes_before_the_reference_and_the_reference_before_a_mention(site: Path):
    assert find_pages(["permissions"], site)["permissions"][:3] == ["permissions", "reference/auth", "limits"]


PASTED = [
    "server.py:12: tool 'permissions' has no rights, and callers sign in with log.writer@openapi.example",
    "/home/me/caching/server.py: Tool 'a' HAS NO RIGHTS and callers sign in with 12",
    "has no rights, and callers sign in",
    "error: no rights in time",
]


@pytest.mark.parametrize("pasted", PASTED)
def test_a_message_that_somebody_pastes_leads_to_its_explanation_whatever_its_names_say(site: Path, pasted: str):
    assert find_pages([pasted], site)[pasted][0] == "messages"


def test_words_of_a_message_in_another_order_are_no_message(site: Path):
    question = "callers with rights to a tool"
    assert find_pages([question], site)[question][0] == "permissions"


def test_a_command_is_found_by_its_name_although_other_pages_are_about_the_word(site: Path):
    found = find_pages(["defserve cache", "cache"], site)
    assert [found["defserve cache"][0], found["cache"][0]] == ["commands", "caching"]


def test_a_mistyped_word_that_no_page_has_is_repaired_to_one_that_means_the_same(site: Path):
    assert find_pages(["keycloka"], site)["keycloka"][0] == "sign-in"


def test_who_and_what_tell_apart_what_people_ask(tmp_path: Path):
    """Words that say nothing about a page say something about a question."""
    phrases = {"first": "what may call a tool", "second": "who may call a tool"}
    page = {"level": 1, "title": "Page", "text": "", "path": GUIDES}
    items = [{**page, "location": f"{name}.html", "asked": [phrase]} for name, phrase in phrases.items()]
    found = find_pages(["who may call my tool", "what may call my tool"], write_site(tmp_path, items))
    assert [pages[0] for pages in found.values()] == ["second", "first"]


def test_each_page_is_found_once_by_its_best_section(site: Path):
    assert find_pages(["forgotten answer"], site)["forgotten answer"].count("caching") == 1


def test_a_page_is_found_by_what_people_ask_although_it_has_none_of_their_words(site: Path):
    assert find_pages(["postman collection"], site) == {"postman collection": ["openapi"]}


def test_words_that_say_nothing_and_words_that_no_page_has_find_nothing(site: Path):
    found = find_pages(["", "?!", "zzzzzz", "<script>"], site)
    assert found == {"": [], "?!": [], "zzzzzz": [], "<script>": []}


def test_the_index_is_a_script_too_for_a_site_that_is_opened_as_a_file(site: Path):
    index = (site / "search.json").read_text("utf-8")
    assert (site / "search.js").read_text("utf-8") == f"var __index = {index};"


def test_a_page_is_called_what_others_call_it():
    links = collect_links(Pages())
    assert "tool search" in links["search.html"]
    assert any("concurrent callers share one search" in said for said in links["cookbook/caching.html"])


def test_no_word_that_says_nothing_means_the_same_as_another():
    told = words()
    synonyms = " ".join([*told["same"], *told["kinds"], *told["kinds"].values()])
    assert set(told["empty"].split()).isdisjoint(synonyms.split())


def test_every_page_has_what_people_ask():
    counts = Counter(address.partition("#")[0] for address, phrases in collect_asked().items() for _ in phrases)
    pages = {
        place.replace(".md", ".html") for place in Pages().texts if not place.startswith((*UNSEARCHED, "reference/"))
    }
    assert {page for page in pages if counts[page] < MIN_ASKED} == set()
    assert set(counts) <= pages


def test_what_people_ask_leads_to_pages_and_sections_that_exist():
    addresses = {
        f"{place.replace('.md', '.html')}#{anchor(heading)}"
        for place, text in Pages().texts.items()
        for _, heading, _ in headings(text)
    }
    assert {address for address in collect_asked() if "#" in address} <= addresses


def test_what_people_ask_leads_to_one_page():
    phrases = Counter(phrase.lower() for asked in collect_asked().values() for phrase in asked)
    assert {phrase for phrase, count in phrases.items() if count > 1} == set()
