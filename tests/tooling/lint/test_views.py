from __future__ import annotations

from pathlib import Path
from typing import Any

from defserve import Server
from tests.rows import for_each_row
from tests.tooling.lint.reading import only, read

ELSEWHERE = '<script src="https://cdn.example.com/x.js"></script>'


def viewing(view: Any, **csp: list[str]) -> Server:
    server = Server("viewing", "1")
    server.add_app(view, "ui://viewing/view", csp=csp, description="A view.")  # pyright: ignore[reportArgumentType]
    return server


def inline() -> str:
    return '<!doctype html><script src="https://cdn.example.com/x.js"></script>'


def elsewhere() -> str:
    return ELSEWHERE


def sockets() -> str:
    return "<script>new WebSocket('wss://live.example.com:8443/x'); fetch('http://127.0.0.1:80')</script>"


def bare() -> str:
    return "<link href=//fonts.example.com/a.css>"


def harmless() -> str:
    return """<!-- https://a.example --><a class=x href="https://b.example">b</a>
    <svg xmlns="http://www.w3.org/2000/svg"></svg><script>fetch(path)</script>"""


def file() -> Path:
    return Path("no_such_view.html")


@for_each_row(
    ("view", "reached"),
    [
        (inline, ["https://cdn.example.com"]),
        (elsewhere, ["https://cdn.example.com"]),
        (sockets, ["wss://live.example.com:8443", "http://127.0.0.1:80"]),
        (bare, ["https://fonts.example.com"]),
        (harmless, []),
    ],
)
def test_an_origin_that_no_csp_names_is_found(view: Any, reached: list[str]):
    found = only(read(viewing(view)), "unnamed-origin")
    assert [one.finding.problem.split()[3].rstrip(",") for one in found] == reached
    assert all(one.finding.where.startswith(("tests/", "/")) for one in found)
    assert only(read(viewing(view, connect=reached)), "unnamed-origin") == []


@for_each_row(
    ("named", "is_found"),
    [
        ("https://*.example.com", False),
        ("https://*.ample.com", True),
        ("http://*.example.com", True),
        ("https://example.com", True),
    ],
)
def test_a_wildcard_names_the_subdomains_of_its_scheme(named: str, is_found: bool):
    assert bool(only(read(viewing(inline, resource=[named])), "unnamed-origin")) is is_found


def test_a_file_is_read_and_missed(tmp_path: Path):
    (missing,) = only(read(viewing(file)), "missing-view")
    assert "no_such_view.html" in missing.finding.problem
    source, page = tmp_path / "viewed.py", tmp_path / "page.html"
    source.write_text("from pathlib import Path\ndef view():\n    return Path(__file__).with_name('page.html')\n")
    page.write_text(ELSEWHERE)
    space: dict[str, Any] = {"__file__": str(source)}
    exec(compile(source.read_text(), str(source), "exec"), space)
    assert only(read(viewing(space["view"])), "missing-view") == []
    assert len(only(read(viewing(space["view"])), "unnamed-origin")) == 1


def test_tools_that_only_views_use_are_read_too():
    server = viewing(harmless)
    server.add_tool(inline, name="press", visible_to="app")
    found = read(server)
    assert [one.finding.subject for one in only(found, "missing-description")] == ["tool 'press'"]
    assert found.tokens == 0  # models do not see it
