"""Methods that change their object, by name. Light: the jailed child imports this file."""

from __future__ import annotations

MUTATORS = frozenset(
    (
        "append extend insert remove pop clear sort reverse update setdefault popitem add discard difference_update"
        " intersection_update symmetric_difference_update appendleft extendleft popleft rotate move_to_end subtract"
        " write writelines truncate write_text write_bytes unlink rename rmdir mkdir touch seed setstate send throw"
        " frombytes fromlist byteswap commit execute executemany put put_nowait set_result"
    ).split()
)
