"""Signing in at a real issuer (npm's oidc-provider), in a real browser, with the command line and the inspector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from anyio.from_thread import start_blocking_portal

from defserve.client.signin.credentials import FileCredentialStore
from tests.client.signin.company import Company, company
from tests.conformance.suite_install import node
from tests.waiting import wait_until

from .accessibility import serious
from .chromium import FOLDER

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def issuer(scripts: dict[str, str]) -> Iterator[str]:
    """The address of the issuer."""
    command = [str(node()), str(FOLDER / "issuer.mjs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.kill()


class SignedTokens(dict[str, str]):
    """The tokens of the issuer: whatever it has signed for this server counts, with the scopes that it says."""

    def __init__(self, issuer: str, audience: str) -> None:
        super().__init__()
        self._issuer, self._audience = issuer, audience
        self._keys: Any = None

    def get(self, token: str, *_: Any) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        import jwt

        if self._keys is None:
            self._keys = jwt.PyJWKSet.from_dict(_get(f"{self._issuer}/jwks"))
        try:
            key = self._keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(token, key, ["RS256"], issuer=self._issuer, audience=self._audience)
        except (jwt.PyJWTError, KeyError, ValueError):
            return None
        return claims.get("scope", "")


@pytest.fixture
def there(issuer: str) -> Iterator[Company]:
    """A server whose tokens come from the issuer."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(company()) as made:
        made.resource["authorization_servers"] = [issuer]
        made.tokens = SignedTokens(issuer, made.url)
        yield made


class Terminal:
    """The command line, with a home of its own. A browser that it opens writes the address into a file."""

    def __init__(self, folder: Path) -> None:
        self._opened = folder / "opened"
        opener = folder / "opener"
        opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {self._opened}.new && mv {self._opened}.new {self._opened}\n')
        opener.chmod(0o700)
        self._environ = {
            **os.environ,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "BROWSER": f"{opener} %s",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        }
        self.store = FileCredentialStore(folder / "config" / "defserve" / "sign-ins", None)

    def start(self, *words: str) -> subprocess.Popen[str]:
        self._opened.unlink(missing_ok=True)
        command = [sys.executable, "-m", "defserve", *words]
        return subprocess.Popen(
            command,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=60)
            return process.returncode, out, err

    def login(self, browser: Browser, *words: str) -> str:
        """Sign in, with a person who says yes to everything in the browser. What the command says."""
        with self.start("login", *words) as process:
            try:
                wait_until(lambda: self._opened.exists() or process.poll() is not None)
                assert process.poll() is None, process.communicate()
                browser.open(self._opened.read_text())
                _say_yes(browser)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
            assert process.returncode == 0, err
            return out


def _say_yes(browser: Browser) -> None:
    """Log in, if the issuer asks for it, and consent."""
    arrived = "location.pathname.startsWith('/callback')"
    while not browser.page(f"({arrived} || document.querySelector('form button[type=submit]')) ? document.title : ''"):
        pass
    for _ in range(3):
        if browser.page(f"({arrived}) ? 'yes' : 'no'") == "yes":
            return
        here = browser.page("location.href")
        if browser.page("document.querySelector('input[name=login]') ? 'yes' : 'no'") == "yes":
            browser.press("input[name=login]")
            browser.type("ada")
            browser.press("input[name=password]")
            browser.type("any")
        browser.press("form button[type=submit]")
        assert browser.page(f"location.href !== {json.dumps(here)} && document.readyState === 'complete'")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.mark.slow
def test_a_person_signs_in_calls_a_tool_gets_more_scopes_and_signs_out(
    terminal: Terminal, there: Company, issuer: str, browser: Browser
) -> None:
    code, _, err = terminal.run("call", there.url, "add")
    assert code == 1 and f"defserve login {there.url}" in err
    assert f"issuer   {issuer}" in terminal.login(browser, there.url)
    assert terminal.run("call", there.url, "add")[:2] == (0, "3\n")

    # The access token ends: it is renewed, and the refresh token is another one then.
    before = terminal.store.load_credential(there.url)
    assert before is not None and before.tokens is not None and before.tokens.refresh_token
    there.tokens = {}
    keys = SignedTokens(issuer, there.url)
    used = before.tokens.access_token
    keys.get = lambda token, *_: None if token == used else SignedTokens.get(keys, token)  # pyright: ignore
    there.tokens = keys
    assert terminal.run("call", there.url, "add")[:2] == (0, "3\n")
    renewed = terminal.store.load_credential(there.url)
    assert renewed is not None and renewed.tokens is not None
    assert renewed.tokens.refresh_token not in (None, before.tokens.refresh_token)

    # The tool wants more than was asked for.
    there.wanted["tools/call"] = "write"
    code, _, err = terminal.run("call", there.url, "add")
    assert code == 1 and f'defserve login {there.url} --scope "write"' in err
    terminal.login(browser, there.url, "--scope", "write")
    assert terminal.run("call", there.url, "add")[:2] == (0, "3\n")

    # Signed out: the issuer knows the refresh token no more.
    last = terminal.store.load_credential(there.url)
    assert last is not None and last.tokens is not None
    assert terminal.run("logout", there.url) == (0, f"Signed out of {there.url}\n", "")
    form = {
        "grant_type": "refresh_token",
        "refresh_token": last.tokens.refresh_token,
        "client_id": last.client.client_id,
    }
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{issuer}/token", urlencode(form).encode(), timeout=30)
    assert json.loads(refused.value.read())["error"] == "invalid_grant"


RESULT = "document.querySelector('.t-res .body')?.innerText"
BANNER = "document.querySelector('.banner')?.innerText"
READY = "document.querySelectorAll('[role=option]').length === 1 && !document.querySelector('.banner')"


class InspectorPage:
    """The inspector of a server, started by the command line."""

    def __init__(self, browser: Browser, terminal: Terminal, there: Company) -> None:
        self.browser, self._there = browser, there
        self.process = terminal.start("inspect", there.url, "--web", "--no-browser")
        assert self.process.stdout is not None
        browser.look(1440, 900)
        browser.open(self.process.stdout.readline().strip())

    def has(self, where: str, text: str) -> bool:
        return bool(self.browser.page(f"({where} ?? '').includes({json.dumps(text)})"))

    def button(self, where: str, words: str) -> None:
        """Press the button, or follow the link, with these words."""
        find = (
            f"[...document.querySelectorAll('{where} :is(button, a)')].find(one => one.innerText.includes('{words}'))"
        )
        assert self.browser.page(f"({find})?.setAttribute('data-pressed', '') ?? !!({find})"), words
        self.browser.press("[data-pressed]")
        self.browser.page("document.querySelector('[data-pressed]')?.removeAttribute('data-pressed') ?? true")

    def sign_in(self, where: str, words: str = "Sign in") -> None:
        """Sign in, with a person who says yes."""
        self.button(where, words)
        self.browser.tab()
        assert self.browser.page("window.opener === null && document.referrer === ''")
        _say_yes(self.browser)
        assert self.browser.page("document.body.innerText.includes('Back to the inspector')")
        self.browser.leave()

    def call(self) -> None:
        """Call the tool, until this call is over."""
        said = "document.querySelector('.t-res [role=status]').innerText"
        before = self.browser.page(f"[{said}]")[0]
        self.browser.press("[role=option]")
        self.button(".t-form", "Call")
        assert self.browser.page(f"{said} && {said} !== {json.dumps(before)}")

    @property
    def calls(self) -> int:
        return sum(each.method == "tools/call" for each in self._there.list_requested_uris("/mcp"))


@pytest.fixture
def page(browser: Browser, terminal: Terminal, there: Company) -> Iterator[InspectorPage]:
    made = InspectorPage(browser, terminal, there)
    with made.process:
        yield made
        browser.open("about:blank")
        made.process.terminate()


def test_a_person_signs_in_from_the_inspector_until_they_sign_out(
    page: InspectorPage, terminal: Terminal, there: Company, issuer: str, browser: Browser
) -> None:
    assert page.has(BANNER, "Sign in") and serious(browser) == []
    page.sign_in(".banner")
    assert browser.page(READY), "it connects by itself"
    page.call()
    assert page.has(RESULT, "3") and serious(browser) == []

    # The access token ends: it is renewed, and nobody is asked.
    before = terminal.store.load_credential(there.url)
    assert before is not None and before.tokens is not None
    ended, keys = {before.tokens.access_token}, SignedTokens(issuer, there.url)
    keys.get = lambda token, *_: None if token in ended else SignedTokens.get(keys, token)  # pyright: ignore
    there.tokens = keys
    page.call()
    assert page.has(RESULT, "3") and browser.tabs() == 0
    renewed = terminal.store.load_credential(there.url)
    assert renewed is not None and renewed.tokens is not None and renewed.tokens != before.tokens

    # The tool wants more than was asked for. The call is repeated when the person says so.
    there.wanted["tools/call"] = "write"
    page.call()
    assert page.has(RESULT, "Sign in with more rights (write)")
    calls = page.calls
    page.sign_in(".t-res", "Sign in with more rights (write)")
    assert page.has(RESULT, "You have signed in since.") and page.calls == calls
    assert browser.page(READY) and serious(browser) == []
    page.button(".t-res", "Try again")
    wait_until(lambda: page.calls > calls)
    assert page.has(RESULT, "3")

    # Everything is revoked: the person is asked again.
    last = terminal.store.load_credential(there.url)
    assert last is not None and last.tokens is not None and last.tokens.refresh_token is not None
    form = {"token": last.tokens.refresh_token, "client_id": last.client.client_id}
    urllib.request.urlopen(last.issuer.revocation_endpoint, urlencode(form).encode(), timeout=30).close()
    ended.add(last.tokens.access_token)
    page.call()
    page.sign_in(".t-res")
    assert page.has(RESULT, "You have signed in since.")
    page.button(".t-res", "Try again")
    assert page.has(RESULT, "3")

    kept = terminal.store.load_credential(there.url)
    assert kept is not None and kept.tokens is not None
    html = browser.page("document.documentElement.outerHTML")
    assert all(secret and secret not in html for secret in (kept.tokens.access_token, kept.tokens.refresh_token))
    browser.press(".top .menu button")
    browser.press("[role=menuitem]")
    assert page.has(BANNER, "Sign in") and terminal.store.load_credential(there.url) is None
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_inspector_says_who_refused_or_gave_up(page: InspectorPage, issuer: str, browser: Browser) -> None:
    page.button(".banner", "Sign in")
    browser.tab()
    browser.leave()
    assert page.has(BANNER, f"Waiting for you to sign in at {issuer.partition('//')[2]}") and serious(browser) == []
    assert browser.page("document.querySelector('.banner a').href").startswith(f"{issuer}/auth?")
    page.button(".banner", "Cancel")
    assert page.has(BANNER, "The sign-in was cancelled.") and serious(browser) == []

    page.button(".banner", "Sign in again")
    browser.tab()
    browser.press("a[href$=abort]")
    assert browser.page("document.body.innerText.includes('refused: End-User aborted interaction. The inspector says')")
    browser.leave()
    assert page.has(BANNER, "You are not signed in.") and page.has(BANNER, "access_denied") and serious(browser) == []
    page.button(".banner", "Close")
    assert page.has(BANNER, "refuses the conversation") and browser.complaints() == []


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)
