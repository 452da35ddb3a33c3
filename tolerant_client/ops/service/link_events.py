"""What happens to the links of a service, as events; who is told, and what an operator reads of it.

Laws:
- Nobody who is told may stop who tells: a terminal that is gone, or a page that cannot be made, never ends a link's thread.
- What stays as it is is told once.
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
_LONGEST = 500  # characters of what is shown on the page
_AS_IT_SHOULD_BE = {"ahead", "members", "write", "kept", "type"}  # what is left by the rules of a duty


@dataclass(frozen=True)
class LinkEvent:
    """What happened to a link, as one sentence; `facts` are for programs.

    kind: started (facts: PreparedLink), report (facts: TaskReport; twice a second), standing (what is paused, blocked or
    waiting now and was not before, and what moves again), failed (facts: the error), promoted,
    duty (facts: what its round returned; `text` is the duty's name), left (facts: a Left), duty failed
    (facts: its name), stopped, dead (it can only go on in another process).
    """

    link: str
    kind: str
    text: str
    facts: Any = None


Tell = Callable[[LinkEvent], None]


class Listeners:
    """Tells everybody; an error of one of them is logged, once each, and neither the others nor the link notice."""

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
                    with contextlib.suppress(Exception):  # where the log goes may be what is gone
                        _log.exception("Telling of link %s failed; told no more of that", event.link)


def tell_duty(link: str, tell: Tell) -> Callable[[str, object, Exception | None], None]:
    """What DutyThread tells, as events of a link; what a round left undone, once, and again when it comes back."""
    so_far = LeftSoFar()

    def done(name: str, report: object, error: Exception | None) -> None:
        if error is None:
            news = [
                each for each in so_far.news(name, getattr(report, "left", ())) if each.reason not in _AS_IT_SHOULD_BE
            ]
            for each in news[:_LEFT_AT_ONCE]:
                tell(LinkEvent(link, "left", f"{name} left {each}", each))
            if len(news) > _LEFT_AT_ONCE:
                tell(LinkEvent(link, "left", f"{name} left {len(news) - _LEFT_AT_ONCE} more"))
            tell(LinkEvent(link, "duty", name, report))
        else:
            tell(LinkEvent(link, "duty failed", f"{name} failed, and is tried again: {sentence(error)}", name))

    return done


def undone(left: Iterable[Left]) -> str:
    """What of a round did not work, as one sentence; "" where all that it left it left by its rules.  Pure."""
    failures = [each for each in left if each.is_failure]
    if not failures:
        return ""
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    first = str(failures[0])  # it may name thousands of groups
    return f"did not do all: {first if len(first) <= _LONGEST else f'{first[:_LONGEST]}...'}{more}"


class EventPrinter:
    """Prints what an operator should read, a line each on standard error; a duty that fails again in the same way, once."""

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
    """The first line of what an error says."""
    lines = text_of(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
