"""Which identifiers judged code may use: tables and predicates.

The jailed child imports this file, so it imports little.
"""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """A table of names, written as one text."""
    return frozenset(text.split())


# Any mention is refused, called or not.
BLOCKED_BUILTINS = words("eval exec compile __import__ globals locals vars breakpoint help __build_class__ __loader__")
STRICT_BUILTINS = BLOCKED_BUILTINS | words(
    "open input type super setattr delattr dir memoryview exit quit copyright credits license aiter anext"
    " BaseException SystemExit KeyboardInterrupt GeneratorExit BaseExceptionGroup ExceptionGroup"
)
# May only be called directly, with a literal as the name or mode.
BY_NAME = words("getattr hasattr setattr delattr")

FRAMES = words(
    "gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await f_back f_builtins"
    " f_code f_generator f_globals f_locals f_trace tb_frame tb_next co_code co_consts func_globals func_code"
    " _evaluate _getframe _current_frames evaluate_bound evaluate_constraints evaluate_default evaluate_value"
    " evaluate_forward_ref"
)
READABLE = words("__name__ __doc__ __qualname__ __version__")
MODULE_NAMES = words("__all__ __version__ __author__ __license__ __copyright__ __email__ __date__ __credits__")
METHODS = frozenset(
    f"__{name}__"
    for name in (
        "init new del str repr bytes format hash bool eq ne lt le gt ge len iter next reversed contains getitem setitem"
        " delitem missing call enter exit aenter aexit aiter anext await add sub mul matmul truediv floordiv mod divmod"
        " pow lshift rshift and or xor radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand"
        " rxor ror iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior neg pos abs invert"
        " int float complex index round trunc floor ceil getattr getattribute setattr delattr dir get set delete"
        " set_name init_subclass class_getitem post_init copy deepcopy sizeof instancecheck subclasscheck length_hint"
        " prepare subclasshook buffer"
    ).split()
)
CLASS_NAMES = METHODS | words("__slots__ __doc__ __hash__ __annotations__")
SUPER_METHODS = METHODS - words("__getattribute__ __getattr__ __setattr__ __delattr__ __del__ __dir__ __subclasshook__")

# What a strict program may define: more than RestrictedPython allows, but only methods that read and compute.
STRICT_METHODS = words(
    "__init__ __contains__ __lt__ __le__ __eq__ __ne__ __gt__ __ge__ __str__ __repr__ __len__ __iter__ __next__"
    " __hash__ __bool__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__"
    " __neg__ __abs__ __int__ __float__ __getitem__ __post_init__"
)

# Methods that change their object.
MUTATORS = words(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard difference_update"
    " intersection_update symmetric_difference_update appendleft extendleft popleft rotate move_to_end subtract"
    " write writelines truncate write_text write_bytes unlink rename rmdir mkdir touch seed setstate send throw"
    " frombytes fromlist byteswap commit execute executemany put put_nowait set_result"
)

_HOOK = re.compile(r"_[^_].*_\Z|_print\Z|_tmp\d*\Z|.*__roles__\Z", re.DOTALL)
DUNDER_TEXT = re.compile(r"__(?!main__|init__|name__)[A-Za-z][A-Za-z0-9_]*__")


def is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_hook(name: str) -> bool:
    """Whether the name has the shape of a RestrictedPython hook (`_getattr_`), which no program may touch."""
    return name.startswith("_") and not name.startswith("__") and _HOOK.match(name) is not None


def is_private(name: str) -> bool:
    """One leading underscore, and no hook."""
    return name.startswith("_") and name != "_" and not name.startswith("__") and not is_hook(name)
