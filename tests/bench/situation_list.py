"""The list that the situations enter themselves into."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from situation_rig import Rig, Row

Act = Callable[[Rig], Row | None]  # None: count with Rig.row()

SITUATIONS: dict[str, Situation] = {}


class Situation(NamedTuple):
    name: str
    title: str
    act: Act
    mirrors: tuple[str, ...]
    source_version: str
    source_nodes: int
    target_nodes: int

    @property
    def needs(self) -> tuple[str, int, int]:
        return self[4:]


def situation(
    title: str,
    *,
    eos: bool = False,
    loss: bool = False,
    source_version: str = "4.2.0",
    source_nodes: int = 1,
    target_nodes: int = 1,
) -> Callable[[Act], Act]:
    """Enters a function under its own name.

    `eos` where exactly-once makes a difference to MirrorMaker 2, `loss` where policy makes one to ours.
    """

    def enter(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        mirrors = ("mm2", *(["mm2-eos"] if eos else []), "ours", *(["ours-continue"] if loss else []))
        SITUATIONS[name] = Situation(name, title, act, mirrors, source_version, source_nodes, target_nodes)
        return act

    return enter
