"""Which names a link can have.  Pure."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 225  # after "tolerant-mirror-offsets-", within the 249 of Topic.java
_NAME: Final = re.compile(f"[a-zA-Z0-9._-]{{1,{LONGEST}}}")


def is_link_name(name: str) -> bool:
    """Whether a link can have this name, which is part of a topic's; no mirror writes a record of another one."""
    return _NAME.fullmatch(name) is not None
