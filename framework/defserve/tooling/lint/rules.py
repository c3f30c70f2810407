"""The rules, a small function each: definitions in, findings out. `RULES` is the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from defserve.tooling.lint import awaits, schemas, security, texts
from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import Finding

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is looked for, how much it matters, and who looks."""

    level: Level
    about: str
    look: Callable[[Definitions], Iterator[Finding]]


RULES: Final[dict[str, Rule]] = {
    "missing-description": Rule("error", "a tool, resource or prompt without a description", texts.undescribed),
    "missing-parameter-description": Rule("warning", "an argument without a description", texts.undescribed_parameters),
    "vague-name": Rule("warning", "a name that does not say what the tool does", texts.vague_names),
    "long-description": Rule("warning", f"a description of more than {texts.LONG} characters", texts.long_descriptions),
    "hidden-characters": Rule("error", "invisible, direction or tag characters in what a model reads", texts.hidden),
    "prompt-injection": Rule("error", "a text that gives the model orders", texts.injections),
    "similar-tools": Rule("warning", "two tools that a model could take for one another", texts.similar),
    "invalid-schema": Rule("error", "a schema that is none, or whose references lead nowhere", schemas.invalid),
    "deep-schema": Rule("warning", f"arguments nested more than {schemas.FLAT} levels deep", schemas.deep),
    "too-many-parameters": Rule("warning", f"more than {schemas.MANY} arguments", schemas.too_many),
    "token-cost": Rule("warning", f"a list of tools of more than {schemas.BUDGET} tokens", schemas.costly),
    "unguarded-parameter": Rule("error", "a command, URL, path or code that nothing judges", security.unguarded),
    "unmarked-danger": Rule("error", "a tool that destroys or runs things and carries no mark", security.unmarked),
    "security-contradiction": Rule("error", "marks, annotations and name that disagree", security.contradictions),
    "forgotten-await": Rule("error", "a question of the Context's that nobody waits for", awaits.forgotten),
    "unused-feature-set": Rule("warning", "a feature set on which nothing is declared", security.unused_sets),
}
