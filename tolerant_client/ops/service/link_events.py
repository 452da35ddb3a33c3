"""Events of a service's links: who receives them, and what an operator reads.

Laws:
- A receiver never stops the sender: a closed terminal, or a page that cannot be rendered, never ends a link's thread.
- A state that does not change is reported once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tolerant_client.errors import text_of
from tolerant_client.mirror.follow.skipped import Left, LeftSoFar
from tolerant_client.ops.printing import echo

_log = logging.getLogger(__name__)

_LEFT_AT_ONCE = 20  # lines of one round
_LONGEST = 500  # characters shown on the page
_BY_RULE = {"ahead", "members", "write", "kept", "type"}  # reasons that are a duty's rule, not a failure


@dataclass(frozen=True)
class LinkEvent:
    """Something that happened to a link, as one sentence; `facts` are for programs.

    kind: started (facts: PreparedLink), report (facts: TaskReport; twice a second), standing (which partitions are newly
    paused, blocked or waiting, and which move again), failed (facts: the error), promoted,
    duty (facts: what its round returned; `text` is the duty's name), left (facts: a Left), duty failed
    (facts: its name), stopped, dead (the link can only resume in another process).
    """

    link: str
    kind: str
    text: str
    facts: Any = None


Tell = Callable[[LinkEvent], None]


class Listeners:
    """Tells every listener; an error of a listener is logged once per type, and reaches neither other listeners nor the link."""

    def __init__(self, tells: Sequence[Tell]) -> None:
        self._tells = tells
        self._logged: set[tuple[int, str]] = set()

    def __call__(self, event: LinkEvent) -> None:
        for number, tell in enumerate(self._tells):
            try:
                tell(event)
            except Exception as error:
                kind = (number, type(error).__name__)
                if kind not in self._logged:
                    self._logged.add(kind)
                    with contextlib.suppress(Exception):  # the log itself may be what failed
                        _log.exception("Telling of link %s failed; told no more of that", event.link)


def tell_duty(link: str, tell: Tell) -> Callable[[str, object, Exception | None], None]:
    """Turns what DutyThread tells into events of a link; what a round left out is told once, and again if it recurs."""
    so_far = LeftSoFar()

    def done(name: str, report: object, error: Exception | None) -> None:
        if error is None:
            news = [each for each in so_far.news(name, getattr(report, "left", ())) if each.reason not in _BY_RULE]
            for each in news[:_LEFT_AT_ONCE]:
                tell(LinkEvent(link, "left", f"{name} left {each}", each))
            if len(news) > _LEFT_AT_ONCE:
                tell(LinkEvent(link, "left", f"{name} left {len(news) - _LEFT_AT_ONCE} more"))
            tell(LinkEvent(link, "duty", name, report))
        else:
            tell(LinkEvent(link, "duty failed", f"{name} failed, and is tried again: {sentence(error)}", name))

    return done


def undone(left: Iterable[Left]) -> str:
    """What failed in a round, as one sentence; "" if everything that it left out was left out by its rules.  Pure."""
    failures = [each for each in left if each.is_failure]
    if not failures:
        return ""
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    first = str(failures[0])  # can name thousands of groups
    return f"incomplete: {first if len(first) <= _LONGEST else f'{first[:_LONGEST]}...'}{more}"


class EventPrinter:
    """Prints what an operator should read, one line each on standard error; a duty that repeats the same failure is printed once."""

    def __init__(self) -> None:
        self._failing: dict[tuple[str, str], str] = {}

    def __call__(self, event: LinkEvent) -> None:
        if event.kind == "duty":
            if self._failing.pop((event.link, event.text), None) is not None:
                self._print(event.link, f"{event.text}: done again")
        elif event.kind == "duty failed":
            duty = (event.link, event.facts)
            if self._failing.get(duty) != event.text:
                self._failing[duty] = event.text
                self._print(event.link, event.text)
        elif event.kind != "report":
            self._print(event.link, event.text)

    @staticmethod
    def _print(link: str, text: str) -> None:
        echo(f"tolerant-kafka: {link}: {text}", err=True)


def sentence(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = text_of(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
