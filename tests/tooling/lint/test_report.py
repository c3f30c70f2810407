from __future__ import annotations

import re
from pathlib import Path

from defserve.tooling.lint.rules import LINT_RULES, run_lint_rules
from tests.tooling.lint.reading import wire


def test_errors_come_first_and_a_rule_can_be_left_out():
    found = wire({"name": "run", "description": ""})
    assert [c.rule for c in run_lint_rules(found)] == ["missing-description", "unmarked-danger", "vague-name"]
    assert [c.rule for c in run_lint_rules(found, {"unmarked-danger", "vague-name"})] == ["missing-description"]


def test_every_rule_says_what_it_looks_for():
    assert all(rule.about and rule.level in ("error", "warning") for rule in LINT_RULES.values())


def test_the_documentation_has_every_rule():
    text = (Path(__file__).parents[3] / "docs" / "linting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(name, rule.level, rule.about) for name, rule in LINT_RULES.items()]
