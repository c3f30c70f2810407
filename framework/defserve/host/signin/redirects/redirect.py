"""How a person gets to the issuer's page and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Visit(Protocol):
    """One way to the issuer and back, open while a person signs in."""

    uri: str
    """Where the issuer is to send the person back to."""

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        """Take the person to `url`, and give the whole address they were sent back to.

        Addresses that are no answer to this attempt are passed over. Raises SignInError if none comes.
        """
        ...


class Redirect(Protocol):
    """Opens such ways: a browser of this machine, or addresses that are copied by hand."""

    def open(self, preferred: str, mark: str) -> AbstractAsyncContextManager[Visit]:
        """A way whose `uri` is `preferred`, if that is possible and not empty.

        With a `mark` the path of `uri` ends with it, if the way can have such addresses.
        """
        ...
