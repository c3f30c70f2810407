from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from defserve.base.version import VERSION
from defserve.errors import UsageError
from defserve.tooling.project_template import TemplateQuestions, load_template_questions


@pytest.fixture
def asked() -> TemplateQuestions:
    return load_template_questions()


def test_names_follow_from_the_first_answer(asked: TemplateQuestions):
    answers = asked.complete({"project_name": "Weather_of Today"})
    assert (answers["project_slug"], answers["package_name"]) == ("weather-of-today", "weather_of_today")


def test_the_description_and_the_requirement_follow_from_the_body(asked: TemplateQuestions):
    answers = asked.complete({"body": "code-runner"})
    assert "sandbox" in answers["description"]
    assert answers["__requirement"].startswith("defserve[sandbox]>=")


def test_a_new_project_asks_for_this_version_of_defserve(asked: TemplateQuestions):
    for body in asked.choices("body"):
        requirement = Requirement(asked.complete({"body": body})["__requirement"])
        assert requirement.specifier.contains(VERSION)


def test_every_question_has_a_prompt_and_every_body_a_description(asked: TemplateQuestions):
    assert all(question.prompt for question in asked)
    bodies = set(asked.choices("body"))
    assert set(asked.settings["_descriptions"]) == set(asked.settings["_requirements"]) == bodies


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("project_name", ""),
        ("project_name", 'The "best"'),
        ("project_name", "9 lives"),
        ("project_name", "Ünïcode"),
        ("project_name", "../evil"),
        ("project_name", "a  b"),
        ("project_name", "class"),
        ("project_name", "json"),
        ("project_name", "defserve"),
        ("project_name", "x" * 51),
        ("package_name", "My-Pkg"),
        ("description", "x" * 101),
        ("description", "a\nb"),
        ("description", "{{ cookiecutter.body }}"),
        ("author", "back\\slash"),
        ("github_user", "-x"),
        ("github_user", "a/b"),
        ("body", "nothing"),
        ("licence", "GPL"),
    ],
)
def test_an_answer_that_would_break_the_project_is_refused_with_a_fix(asked: TemplateQuestions, name: str, answer: str):
    with pytest.raises(UsageError) as refused:
        asked.complete({name: answer})
    assert refused.value.fix


@pytest.mark.parametrize("author", ["O'Brien & Søn <x>", "名前", "$HOME `x` #1 %s"])
def test_people_may_be_called_what_they_are_called(asked: TemplateQuestions, author: str):
    assert asked.complete({"author": author})["author"] == author
