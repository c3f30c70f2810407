"""The table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from defserve.tooling.lint import awaits, live, schemas, security, skills, texts, views
from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import LintFinding

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class LintRule:
    """What a rule looks for, how serious it is, and the function that looks."""

    level: Level
    about: str
    look: Callable[[Definitions], Iterator[LintFinding]]


RULES: Final[dict[str, LintRule]] = {
    "missing-description": LintRule("error", "a tool, resource or prompt without a description", texts.undescribed),
    "missing-parameter-description": LintRule(
        "warning", "an argument without a description", texts.undescribed_parameters
    ),
    "vague-name": LintRule("warning", "a name that does not say what the tool does", texts.vague_names),
    "long-description": LintRule(
        "warning", f"a description of more than {texts.LONG} characters", texts.long_descriptions
    ),
    "hidden-characters": LintRule(
        "error", "invisible, direction or tag characters in what a model reads", texts.hidden
    ),
    "prompt-injection": LintRule("error", "a text that gives the model orders", texts.injections),
    "similar-tools": LintRule("warning", "two tools that a model could mix up", texts.similar),
    "invalid-schema": LintRule("error", "a schema that is not valid, or has references to nothing", schemas.invalid),
    "unenforced-pattern": LintRule(
        "warning", "an imported pattern that cannot be matched in linear time", schemas.unenforced
    ),
    "deep-schema": LintRule("warning", f"arguments nested more than {schemas.FLAT} levels deep", schemas.deep),
    "too-many-parameters": LintRule("warning", f"more than {schemas.MANY} arguments", schemas.too_many),
    "token-cost": LintRule("warning", f"a list of tools of more than {schemas.BUDGET} tokens", schemas.costly),
    "unguarded-parameter": LintRule("error", "a command, URL, path or code that nothing checks", security.unguarded),
    "unmarked-danger": LintRule("error", "a tool that destroys or runs things and has no mark", security.unmarked),
    "security-contradiction": LintRule("error", "marks, annotations and name that disagree", security.contradictions),
    "forgotten-await": LintRule("error", "a call on the Context without `await`", awaits.forgotten),
    "needless-await": LintRule("error", "`await` before a call on the Context that gives nothing", awaits.needless),
    "unused-feature-set": LintRule("warning", "a feature set with nothing declared on it", security.unused_sets),
    "off-by-default": LintRule(
        "warning", "a feature set that MCPL hosts of 0.5 switch off by default", live.denied_sets
    ),
    "injected-orders": LintRule("warning", "an injected text that gives the model orders", live.injected_orders),
    "unnamed-origin": LintRule(
        "warning", "a URL in the HTML of a view that its csp does not name", views.unnamed_origins
    ),
    "missing-view": LintRule("error", "a view whose HTML file does not exist", views.missing_files),
    "big-integers": LintRule("warning", "a state whose integers may be past 2^53", live.big_integers),
    "sent-state": LintRule("warning", "an argument whose type is the model of a state", live.sent_states),
    "skill-private-file": LintRule("error", "a file of a skill that is private, or has a secret in it", skills.private),
    "skill-hidden-characters": LintRule("error", "such characters in the texts of a skill", skills.hidden),
    "skill-format": LintRule("error", "frontmatter that clients may refuse", skills.malformed),
    "skill-missing-file": LintRule("warning", "a link in SKILL.md that leads nowhere", skills.missing),
    "skill-left-out": LintRule("warning", "a file in the folder of a skill that is not served", skills.left_out),
}
