"""Which names a link can have, and which flow of a file has one.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

LONGEST: Final = 225  # after "tolerant-mirror-offsets-", within the 249 of Topic.java
_NAME: Final = re.compile(f"[a-zA-Z0-9._-]{{1,{LONGEST}}}")


def is_link_name(name: str) -> bool:
    """Whether a link can have this name, which is part of a topic's; no mirror writes a record of another one."""
    return _NAME.fullmatch(name) is not None


class Aliases(NamedTuple):
    """What a file calls the clusters of a flow."""

    source: str
    target: str


def flow_back(link: str, forward: Mapping[str, Aliases]) -> str:
    """The flow A->B that is `link` in a file; "" if nothing tells that it is one.

    Aliases may have hyphens, too: it is the flow opposite to one of the links `forward`, or else one with an alias of theirs.
    """

    def likeness(flow: Aliases) -> tuple[bool, int]:
        opposite = f"{flow.target}-{flow.source}"
        return max(
            (opposite == other, (flow.source == a.target) + (flow.target == a.source)) for other, a in forward.items()
        )

    hyphens = [at for at, letter in enumerate(link) if letter == "-"]
    flows = [Aliases(link[:at], link[at + 1 :]) for at in hyphens if 0 < at < len(link) - 1]
    if not (flows and forward):
        return ""
    best = max(flows, key=likeness)
    return f"{best.source}->{best.target}" if likeness(best) > (False, 0) else ""
