"""The params of a search and of a request for tools, checked as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from defserve.errors import InvalidParams
from defserve.protocols.mcp.params import fields, optional_fields, text
from defserve.search.entries import RISKS, EntryFilter, Risk
from defserve.search.ranking import LONGEST_QUERY, STRATEGIES, Strategy
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

MOST_RESULTS, DEFAULT_RESULTS = 20, 5
MOST_NAMES, LONGEST_NAME = 64, 200
REASONS = ("capability_gap", "performance", "preference")
STATUSES = ("registered", "connecting", "connected", "draining", "restarting", "disconnected", "error", "all")


@dataclass(frozen=True, slots=True)
class ToolQuery:
    """What `mgp/tools/discover` asks."""

    query: str
    strategy: Strategy
    most: int
    wanted: EntryFilter

    @classmethod
    def of(cls, params: Params, default: Strategy) -> ToolQuery:
        """Raises InvalidParams."""
        query, strategy = _bounded(text(params, "query"), "query"), params.get("strategy", default)
        wanted = _filter(optional_fields(params, "filter") or {})
        if strategy not in STRATEGIES:
            raise InvalidParams(f"Invalid params: strategy must be one of {', '.join(STRATEGIES)}")
        if strategy == "category" and not wanted.categories:
            raise InvalidParams("Invalid params: the category strategy needs filter.categories")
        if strategy != "category" and not query.strip():
            raise InvalidParams("Invalid params: query must say what the tool should do")
        return cls(query, strategy, _count(params.get("max_results", DEFAULT_RESULTS)), wanted)


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What `mgp/tools/request` asks."""

    context: str
    capabilities: tuple[str, ...]
    types: tuple[str, ...]
    wanted: EntryFilter

    @classmethod
    def of(cls, params: Params) -> ToolRequest:
        """Raises InvalidParams."""
        if params.get("reason") not in REASONS:
            raise InvalidParams(f"Invalid params: reason must be one of {', '.join(REASONS)}")
        context, needs = _bounded(text(params, "context"), "context"), fields(params, "requirements")
        trace = params.get("task_trace_id")
        if trace is not None and not (isinstance(trace, str) and len(trace) <= LONGEST_NAME):
            raise InvalidParams(f"Invalid params: task_trace_id must be a text of at most {LONGEST_NAME} characters")
        capabilities = texts(needs, "capabilities", "requirements.")
        if not capabilities and not context.strip():
            raise InvalidParams("Invalid params: name what is needed, in requirements.capabilities or in context")
        types = texts(needs, "input_types", "requirements.") + texts(needs, "output_types", "requirements.")
        return cls(context, capabilities, types, EntryFilter(risk_level_max=_risk(needs, "preferred_risk_level")))


def texts(params: Params, name: str, at: str = "", *, required: bool = False) -> tuple[str, ...]:
    """A list of short texts, each once. Raises InvalidParams."""
    given: Any = params.get(name, None if required else ())
    if not (is_array(given) or given == ()) or len(given) > MOST_NAMES:
        raise InvalidParams(f"Invalid params: {at}{name} must be a list of at most {MOST_NAMES} texts")
    if not all(isinstance(each, str) and 0 < len(each) <= LONGEST_NAME for each in given):
        raise InvalidParams(f"Invalid params: {at}{name} must hold texts of 1 to {LONGEST_NAME} characters")
    return tuple(dict.fromkeys(given))


def _filter(given: Params) -> EntryFilter:
    status = given.get("status")
    if status is not None and status not in STATUSES:
        raise InvalidParams(f"Invalid params: filter.status must be one of {', '.join(STATUSES)}")
    categories = texts(given, "categories", "filter.")
    return EntryFilter(categories, _risk(given, "risk_level_max"), None if status == "all" else status)


def _risk(given: Params, name: str) -> Risk | None:
    risk = given.get(name)
    if risk is not None and risk not in RISKS:
        raise InvalidParams(f"Invalid params: {name} must be one of {', '.join(RISKS)}")
    return risk


def _count(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= MOST_RESULTS:
        raise InvalidParams(f"Invalid params: max_results must be 1 to {MOST_RESULTS}")
    return given


def _bounded(given: str, name: str) -> str:
    if len(given) > LONGEST_QUERY:
        raise InvalidParams(f"Invalid params: {name} may have at most {LONGEST_QUERY} characters")
    return given
