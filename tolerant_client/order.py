"""Which answers must wait for older requests (T2), decided on the requests alone.

Laws:
- Requests that share an order key (Produce of one partition, OffsetCommit of
  one group) are answered to their callers in the order of sending, resends
  included.
- A later answer of the same API waits until every older one of that API is
  answered or lost: it could be the older one's answer under a wrong id.  Where
  the older one is lost, only an answer to something sent later proves that no
  second answer comes: brokers answer in order, and a slow one takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from tolerant_client.lifecycle import InFlightRequest


def is_blocked(entry: InFlightRequest, requests: Collection[InFlightRequest]) -> bool:
    """True while `entry`'s answer has to be held; `requests` in the order of the wire."""
    keys = set(entry.request.order_keys)
    is_older = True
    for other in requests:
        if other is entry:
            is_older = False
        elif other.is_probe:
            continue
        elif is_older and other.is_unanswered and other.request.API_KEY == entry.request.API_KEY:
            return True
        elif other.order < entry.order and keys and not keys.isdisjoint(other.request.order_keys):
            return True
    return False


def released(
    requests: Collection[InFlightRequest], is_out_of_turn: Callable[[InFlightRequest], bool]
) -> Iterator[tuple[InFlightRequest, bool]]:
    """Held requests whose turn has come, oldest first, with whether the broker answered out of turn.

    The caller settles each one, or sends it again, before it takes the next.
    """
    unanswered_apis: set[int] = set()
    shadowed: set[int] = set()  # held behind an unanswered request of the same API
    for entry in requests:
        if entry.is_held and entry.request.API_KEY in unanswered_apis:
            shadowed.add(entry.order)
        elif entry.is_unanswered and not entry.is_probe:
            unanswered_apis.add(entry.request.API_KEY)
    waiting_keys: set[Any] = set()
    for entry in sorted(requests, key=lambda request: request.order):
        keys = entry.request.order_keys
        is_doubtful = entry.needs_proof and not entry.is_proven
        if not entry.is_held or is_doubtful or entry.order in shadowed or not waiting_keys.isdisjoint(keys):
            waiting_keys.update(keys)
            continue
        out_of_turn = is_out_of_turn(entry)
        if out_of_turn:
            waiting_keys.update(keys)
        yield entry, out_of_turn
