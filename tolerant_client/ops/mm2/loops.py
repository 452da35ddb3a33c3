"""Finds flows that would copy topics in a loop, or two flows into one topic.  Pure.

Whether two lists of expressions can match the same name is decided by what their matches must begin with.
A loop or a shared topic is reported unless this rules it out: two expressions that cannot match the same name
but begin alike (`a.*x` and `a.*y`) count as overlapping.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames, is_cycle
from tolerant_client.mirror.state.topic_filter import TopicFilter

_ANY: Final = "\0"  # any one character
_QUANTIFIERS: Final = frozenset("*+?{")
_MOST_WAYS: Final = 1_000  # states of a topic on its way through the clusters; with more, a loop is assumed


class Copies(Protocol):
    """The parts of a flow that matter here."""

    @property
    def source_cluster(self) -> str: ...
    @property
    def target_cluster(self) -> str: ...
    @property
    def target_alias(self) -> str: ...
    @property
    def topics(self) -> TopicFilter: ...
    @property
    def names(self) -> TopicNames: ...


class Names(NamedTuple):
    """Names that begin with `start`: only this name (`is_whole`), all such names (`is_all`), or some of them."""

    start: str
    is_whole: bool = False
    is_all: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether it is exactly one name, `start`."""
        return self.is_whole and _ANY not in self.start

    @property
    def sample(self) -> str:
        """One such name; unknown characters become "?", which no alias has."""
        return self.start.replace(_ANY, "?") + ("" if self.is_whole else "?")

    def meet(self, other: Names) -> Names | None:
        """The names in both; None if there are none."""
        if len(self.start) < len(other.start):
            return other.meet(self)
        if other.is_whole and len(self.start) > len(other.start):
            return None
        start = ""
        for mine, its in zip(self.start, other.start.ljust(len(self.start), _ANY), strict=True):
            if mine != its and _ANY not in (mine, its):
                return None
            start += its if mine == _ANY else mine
        return Names(start, self.is_whole or other.is_whole, self.is_all and other.is_all)

    def covers(self, other: Names) -> bool:
        """Whether certainly all names of `other` are among these."""
        if not (self.is_all or (self.is_whole and other.is_whole and len(self.start) == len(other.start))):
            return False
        begins = zip(self.start, other.start, strict=False)
        return len(self.start) <= len(other.start) and all(mine in (_ANY, its) for mine, its in begins)


@lru_cache(1024)
def names_of(expression: str) -> tuple[Names, ...]:
    """What the matches of a regular expression begin with, one entry for each top-level alternative."""
    if "\\Q" in expression:
        return (Names(""),)
    return tuple(_names_of(part) for part in _alternatives(expression))


def _names_of(expression: str) -> Names:
    text = expression.removeprefix("^")
    if text.endswith("$") and not text.endswith("\\$"):
        text = text[:-1]
    start, at = "", 0
    while at < len(text):
        char, after = text[at], at + 1
        if char == "\\" and after < len(text) and not text[after].isalnum():
            char, after = text[after], after + 1
        elif char == ".":
            char = _ANY
        elif char in "\\^$*+?{[(|)":
            return Names(start)
        if after < len(text) and text[after] in _QUANTIFIERS:
            if char == _ANY and text[after:] == "*":
                return Names(start, is_all=True)
            return Names(start + char if text[after] == "+" else start)
        start, at = start + char, after
    return Names(start, is_whole=True)


def _alternatives(expression: str) -> Iterator[str]:
    part, depth = "", 0
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", expression, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            yield part
            part = ""
        else:
            part += piece
    yield part


def find_loop(flows: Sequence[Copies]) -> tuple[Copies, ...]:
    """Flows through which a topic may come back to its cluster and be copied again; () if that is ruled out."""
    if _is_told_by_names(flows):
        return ()
    for first in flows:
        ways: deque[tuple[tuple[Copies, ...], Names]] = deque()
        ways.extend(((first,), _on_target(first, names)) for names in _taken(first, Names("", is_all=True)))
        seen: set[tuple[str, Names]] = set()
        while ways:  # the shortest first
            path, names = ways.popleft()
            is_back = path[-1].target_cluster == first.source_cluster
            if (is_back and any(_taken(first, names))) or len(seen) > _MOST_WAYS:
                return path
            if (path[-1].target_cluster, names) in seen or len(path) > len(flows):
                continue
            seen.add((path[-1].target_cluster, names))
            for flow in flows:
                if flow.source_cluster == path[-1].target_cluster:
                    ways.extend(((*path, flow), _on_target(flow, taken)) for taken in _taken(flow, names))
    return ()


def _is_told_by_names(flows: Sequence[Copies]) -> bool:
    """Whether every name lists the clusters of its topic, so that no flow copies it there again.

    Then no search is needed; in a full mesh it would be long: A.t, B.A.t, C.B.A.t, ...
    """
    aliases = {flow.source_cluster: flow.names.source_alias for flow in flows}
    separators = {flow.names.policy.separator for flow in flows if type(flow.names.policy) is DefaultReplicationPolicy}
    return (
        all(type(flow.names.policy) is DefaultReplicationPolicy for flow in flows)
        and len(separators) <= 1
        and all(separator and separator not in alias for separator in separators for alias in aliases.values())
        and all(flow.names.source_alias == aliases[flow.source_cluster] for flow in flows)
        and all(flow.target_alias == aliases.get(flow.target_cluster, flow.target_alias) for flow in flows)
        and len(set(aliases.values())) == len(aliases)
    )


def find_shared_target(flows: Sequence[Copies]) -> tuple[Copies, ...]:
    """Two flows that may write to the same topic; () if there are none."""
    for at, one in enumerate(flows):
        for other in flows[at + 1 :]:
            if one.target_cluster == other.target_cluster and any(
                _on_target(one, mine).meet(_on_target(other, its))
                for mine in _taken(one, Names("", is_all=True))
                for its in _taken(other, Names("", is_all=True))
            ):
                return one, other
    return ()


def _taken(flow: Copies, names: Names) -> list[Names]:
    """Which of `names` on its source the flow copies."""
    found = []
    excluded = [out for expression in flow.topics.exclude for out in names_of(expression)]
    for expression in flow.topics.include:
        for included in names_of(expression):
            both = names.meet(included)
            if both is None or any(out.covers(both) for out in excluded):
                continue
            if both.is_exact and not flow.topics.matches(both.start):
                continue
            if not is_cycle(flow.names.policy, both.sample, flow.target_alias):
                found.append(both)
    return found


def _on_target(flow: Copies, names: Names) -> Names:
    return names._replace(start=flow.names.to_target(names.start))
