"""API keys: kept and compared as digests."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

_SCHEME: Final = b"bearer"


class Keys:
    """The keys that open a server; none at all opens it to everybody."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(dict.fromkeys(hashlib.sha256(key.encode()).digest() for key in keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, authorization: bytes) -> str | None:
        """Return who sent a header ``Authorization: Bearer KEY``: a digest of the key; None for nobody.

        Every key is compared, each in constant time, so that nothing can be learnt from how long it takes.
        """
        scheme, _, key = authorization.partition(b" ")
        sent = hashlib.sha256(key.strip()).digest()
        found = [hmac.compare_digest(sent, known) for known in self._digests]
        return sent.hex() if any(found) and scheme.lower() == _SCHEME else None
