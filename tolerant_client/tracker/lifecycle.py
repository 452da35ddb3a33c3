"""The life of one request: its states and the transitions between them.

Laws:
- A change of state that is not in TRANSITIONS is refused, and the connection is retired.
- COMPLETED and FAILED are final: a request is settled once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from tolerant_client.tracker.rules.apis import Action, OtherSubject, Request

NEVER = float("inf")


class State(IntEnum):
    """Where a request is."""

    QUEUED = 0
    IN_FLIGHT = 1
    ODD = 2
    HELD = 3
    DOUBTED = 4
    COMPLETED = 5
    REQUEUED = 6
    FAILED = 7


class Input(IntEnum):
    """What happens to it."""

    SENT = 0
    SUSPECT = 1
    HOLD = 2
    DOUBT = 3
    RESPONDED = 4
    RESEND = 5
    FAIL = 6


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.QUEUED, Input.SENT): State.IN_FLIGHT,
    (State.QUEUED, Input.FAIL): State.FAILED,
    (State.IN_FLIGHT, Input.SUSPECT): State.ODD,
    (State.IN_FLIGHT, Input.HOLD): State.HELD,
    (State.IN_FLIGHT, Input.DOUBT): State.DOUBTED,
    (State.IN_FLIGHT, Input.RESPONDED): State.COMPLETED,
    (State.IN_FLIGHT, Input.RESEND): State.REQUEUED,
    (State.IN_FLIGHT, Input.FAIL): State.FAILED,
    (State.ODD, Input.HOLD): State.HELD,
    (State.ODD, Input.DOUBT): State.DOUBTED,
    (State.ODD, Input.RESEND): State.REQUEUED,
    (State.ODD, Input.FAIL): State.FAILED,
    (State.HELD, Input.DOUBT): State.DOUBTED,
    (State.HELD, Input.RESPONDED): State.COMPLETED,
    (State.HELD, Input.RESEND): State.REQUEUED,
    (State.HELD, Input.FAIL): State.FAILED,
    (State.DOUBTED, Input.RESEND): State.REQUEUED,
    (State.DOUBTED, Input.FAIL): State.FAILED,
    (State.REQUEUED, Input.SENT): State.IN_FLIGHT,
    (State.REQUEUED, Input.FAIL): State.FAILED,
}


class Verdict(Enum):
    """Why a request failed; the binding turns it into the caller's error."""

    HAND_UP = "retriable"
    OUTCOME_UNKNOWN = "outcome unknown"
    EXHAUSTED = "resent too often"
    CLOSED = "connection closed"


class IllegalTransition(Exception):
    """A pair that is not in TRANSITIONS."""


@dataclass(slots=True, eq=False, repr=False)
class InFlightRequest:
    """One request; `context` belongs to the binding (its future, its buffers)."""

    request: Request
    correlation_id: int
    order: int  # among all requests of the connection; a repeat keeps it
    deadline: float
    action: Action
    context: Any
    api: str = field(init=False)
    expected: float = field(init=False)
    state: State = State.QUEUED
    response: Any = None  # what is HELD
    odd: OtherSubject | None = None  # what is ODD: a response that speaks of something else
    said: OtherSubject | None = None  # the odd one after which it was sent again...
    resends_when_said: int = 0  # ...and how often it had been sent again before
    first_sent_at: float = -1.0
    sent_at: float = -1.0
    lost_ids: list[int] = field(default_factory=list)  # those it was sent under before
    is_proved_silent: bool = False  # a probe sent after it has its response, which alone settles nothing
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = self.request.name
        self.expected = self.request.expected_ms / 1000

    def move(self, happened: Input) -> None:
        """Changes the state by the table; raises IllegalTransition for a pair that is not in it."""
        state = TRANSITIONS.get((self.state, happened))
        if state is None:
            raise IllegalTransition(f"{self.api} is {self.state.name}: {happened.name}")
        self.state = state

    def hold(self, response: Any) -> None:
        """Keeps a response until its turn."""
        self.move(Input.HOLD)
        self.response = response

    @property
    def is_open(self) -> bool:
        """True on the wire while its own response is still to come."""
        return self.state is State.IN_FLIGHT or self.state is State.ODD

    @property
    def is_unanswered(self) -> bool:
        """True on the wire without a response that is believed."""
        return self.state is State.IN_FLIGHT or self.state is State.DOUBTED or self.state is State.ODD

    @property
    def resends(self) -> int:
        """How often it was sent again."""
        return len(self.lost_ids)

    @property
    def is_out_of_turn(self) -> bool:
        """Whether the held response says that the broker had not seen the request before it, which was lost and repeated."""
        return self.request.is_out_of_turn(self.response)

    def not_decoded(self, error: Exception) -> str:
        """A message with the first line of the decoder's error, cut short because a long one may quote payload."""
        text = str(error).split("\n", 1)[0]
        text = text if len(text) <= 120 else text[:117] + "..."
        return f"a response to {self.api} does not decode ({type(error).__name__}: {text})"

    def takes(self, body: memoryview, other: InFlightRequest) -> bool:
        """Whether a body that came under the id of another request of the same API could be the response to this one."""
        return self is not other and self.request.API_KEY == other.request.API_KEY and self.reads(body)

    def reads(self, body: memoryview) -> bool:
        """Whether a body decodes as the response to this request and speaks of what it asked for."""
        try:
            self.request.decode_response(body)
        except Exception:  # a decoder on hostile bytes may raise anything
            return False
        return True
