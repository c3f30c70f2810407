"""A kernel: many servers run, watched and served as one, as mgp.toml says (MGP §11, §15).

The kernel is a `Server` like any other, filled by the servers behind it. So every transport, credential check and
limit works in front of it. One bad server never holds up another or the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel
else:
    from defserve.base.exports import make_lazy_getattr

    # The command line reads the file, or asks a kernel that runs, without all that a kernel needs.
    __getattr__ = make_lazy_getattr(__name__, {"defserve.kernel.kernel": "Kernel"})

__all__ = ["Kernel"]
