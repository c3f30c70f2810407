"""What servers do without the rules of `families/rules`. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from typing import Any

from tests.attack.controls.patching import Patch

# -- whose a value is ------------------------------------------------------------------------------------

IDENTITY = "defserve.stores.identity:ServerIdentity"


def seal_for_all_servers(patch: Patch) -> None:
    """One key a purpose, whichever server seals."""
    from defserve.stores.identity import NOBODY, ServerIdentity

    derive = ServerIdentity.derive_key
    patch.set(f"{IDENTITY}.derive_key", lambda self, secret, purpose: derive(NOBODY, secret, purpose))


def keep_all_servers_together(patch: Patch) -> None:
    """One part of a store, whichever server keeps."""
    patch.set(f"{IDENTITY}.make_prefix", lambda self, base="": f"{base}server:all:")


def know_no_server(patch: Patch) -> None:
    seal_for_all_servers(patch)
    keep_all_servers_together(patch)


# -- whose a state is ------------------------------------------------------------------------------------

CHECKPOINTS = "defserve.stores.checkpoints"


def prove_every_state(patch: Patch) -> None:
    """Whatever a call starts from counts as the server's own, and so does all that is made of it."""

    def proving(find: Any) -> Any:
        async def found(self: Any, *given: Any, **more: Any) -> Any:
            return (await find(self, *given, **more))._replace(verified=True)

        return found

    for name in ("adopt", "hold"):
        patch.wrap(f"{CHECKPOINTS}.store:CheckpointStore.{name}", proving)


def prove_every_id(patch: Patch) -> None:
    """The id of a checkpoint does not tell whether it is proved."""
    from defserve.stores.checkpoints.ids import _LABELS  # pyright: ignore[reportPrivateUsage]

    patch.item(f"{CHECKPOINTS}.ids:_LABELS", False, _LABELS[True])


def let_anyone_move_the_shared_head(patch: Patch) -> None:
    patch.set("defserve.protocols.mcpl.state.owner:StateOwner.is_shared", property(lambda self: False))


def let_anyone_roll_back(patch: Patch) -> None:
    patch.set("defserve.protocols.mcpl.state.rollback:_refuse_shared", lambda call, held: None)


# -- patterns --------------------------------------------------------------------------------------------

PATTERNS = "defserve.binding.arguments.patterns"


def match_by_python(patch: Patch) -> None:
    """Python's engine matches the patterns of schemas, and backtracks."""
    import re

    def compile_pattern(pattern: str) -> Any:
        from defserve.binding.arguments.patterns import LinearPattern

        return LinearPattern(pattern, 1, lambda text: re.search(pattern, text) is not None)

    patch.set(f"{PATTERNS}:compile_pattern", compile_pattern)


def declare_any_pattern(patch: Patch) -> None:
    patch.set(f"{PATTERNS}:annotated_pattern_problem", lambda pattern, engine: None)


# -- unions ----------------------------------------------------------------------------------------------


def compare_no_branches(patch: Patch) -> None:
    """A union is taken, whatever its other branches accept."""
    patch.set("defserve.protocols.mgp.security.union_bypass:UnionCheck.find_bypass", lambda self: None)


def judge_late(patch: Patch) -> None:
    patch.set("defserve.protocols.mgp.security.union_bypass:UnionCheck.has_late_guard", lambda self: False)


# -- echoes ----------------------------------------------------------------------------------------------


def repeat_everything(patch: Patch) -> None:
    patch.set("defserve.errors:cut_text", lambda text, most=0: text)
    patch.set("defserve.errors:cut_data", lambda data, most=0, depth=0: data)
