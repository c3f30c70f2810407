from __future__ import annotations

import pytest

from defserve.errors import UsageError
from defserve.tooling.project_template import TemplateRenderer
from tests.rows import for_each_row

VALUES = {"name": "My Server", "body": "tools", "_about": {"tools": "Tools"}}


@for_each_row(
    ("text", "rendered"),
    [
        ("{{ cookiecutter.name }}", "My Server"),
        ("{{cookiecutter.name}}!", "My Server!"),
        ("{{ cookiecutter.name|lower|replace(' ', '-') }}", "my-server"),
        ("{{ cookiecutter._about[cookiecutter.body] }}", "Tools"),
        ('{"a": "{{ cookiecutter.body }}"}', '{"a": "tools"}'),
        ("${{ cookiecutter.body }} and {x}", "$tools and {x}"),
        ("no end\r\n", "no end\r\n"),
    ],
)
def test_what_the_template_uses_is_rendered(text: str, rendered: str):
    assert TemplateRenderer(VALUES).render(text) == rendered


@for_each_row(
    "text",
    [
        "{{ cookiecutter.nothing }}",
        "{{ cookiecutter._about[cookiecutter.nothing] }}",
        "{{ cookiecutter.name|upper }}",
        "{{ secrets.TOKEN }}",
        "{{ open('/etc/passwd') }}",
        '{{ body("x") }}',
        "{% if x %}",
        "{# x #}",
    ],
)
def test_anything_else_is_a_mistake_in_the_template(text: str):
    with pytest.raises(UsageError, match="an expression that is not known"):
        TemplateRenderer(VALUES).render(text)


def test_a_file_is_rendered_where_it_is_named_without_its_last_line_end():
    def body(name: str) -> str:
        return f"{name}: {{{{ cookiecutter.body }}}}\n"

    renderer = TemplateRenderer(VALUES, {"body": body})
    assert renderer.render('{{ body("server.py") }}\n') == "server.py: tools\n"


def test_an_answer_is_never_rendered_itself():
    assert TemplateRenderer({"name": "{{ cookiecutter.body }}", "body": "x"}).render("{{ cookiecutter.name }}") == (
        "{{ cookiecutter.body }}"
    )
