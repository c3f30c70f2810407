"""The Compare panel of the inspector in a real browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from defserve.tooling.listing import server_listing, to_snapshot
from tests.inspector.beds import greenhouse

from .inspecting import inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ITEMS = "[...document.querySelectorAll('.cmpitem')]"
CHOOSE = """(() => {
  const input = document.querySelector('.p-compare input[type=file]'), files = new DataTransfer();
  files.items.add(new File([%s], 'released.json', { type: 'application/json' }));
  input.files = files.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
  return true;
})()"""


def test_a_file_is_compared_with_what_the_server_lists_now(browser: Browser):
    server = greenhouse()
    listed = server_listing(server.composition)
    assert listed is not None
    first, second, *_ = listed.tools
    first["inputSchema"]["properties"]["<b>gone</b>"] = {"type": "string"}
    second["description"] = "Something else."
    listed.tools.append({"name": "prune", "description": "Cut it back.", "inputSchema": {"type": "object"}})
    choose = CHOOSE % json.dumps(json.dumps(to_snapshot(listed)))
    with inspector_in(browser, target_of(server)) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#compare")
        assert browser.page("document.querySelector('.p-compare .empty')?.textContent.includes('Nothing changed')")
        assert browser.page(choose)
        assert browser.page(f"{ITEMS}.length === 3 && document.querySelector('.cmpsum').innerText.includes('2 breaks')")
        assert browser.page(f"{ITEMS}.some(each => each.innerText.includes('<b>gone</b> is gone'))")
        assert browser.page("document.querySelector('.cmd code').textContent.startsWith('defserve diff released.json')")
        for look in looks(browser, inspector.url + "#compare", "document.querySelector('.p-compare .empty') !== null"):
            assert browser.page(choose)
            assert browser.page(f"{ITEMS}.length === 3")
            look.is_fine()
            look.picture("compare")
        assert browser.page(CHOOSE % json.dumps("Dear all"))
        assert browser.page("document.querySelector('.p-compare [role=alert]')?.innerText.includes('is not JSON')")


def test_a_definition_is_shown_as_each_vendor_is_sent_it(browser: Browser):
    def way(word: str) -> str:
        return (
            f"[...document.querySelectorAll('.t-form .body [role=radio]')].find(b => b.innerText === '{word}').click()"
        )

    opened = "document.querySelector('.t-form .tablist') !== null"
    with inspector_in(browser, target_of(greenhouse())) as inspector:
        for look in looks(browser, inspector.url + "#tools/add_bed", opened):
            tab = "[...document.querySelectorAll('.t-form [role=tab]')].find(t => t.innerText === 'Definition')"
            browser.page(f"{tab}.click() ?? true")
            assert browser.page("document.querySelectorAll('.t-form .body [role=radio]').length >= 5")
            browser.page(f"{way('Anthropic')} ?? true")
            assert browser.page("document.querySelector('.t-form .json')?.innerText.includes('input_schema')")
            browser.page(f"{way('All tools')} ?? true")
            assert browser.page("document.querySelector('.t-form .json')?.innerText.includes('set_target')")
            look.is_fine()
            look.picture("definition")
