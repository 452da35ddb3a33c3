"""The life of one request: its states, and the only ways between them.

Laws:
- A change of state is in TRANSITIONS, or it is refused and the connection goes.
- COMPLETED and FAILED have no way out: a request is settled once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from tolerant_client.apis import FETCH, Action

NEVER = float("inf")


class State(IntEnum):
    """Where a request is."""

    QUEUED = 0
    IN_FLIGHT = 1
    COMPLETED = 2
    REQUEUED = 3
    FAILED = 4


class Input(IntEnum):
    """What happens to it."""

    SENT = 0
    HELD = 1
    ANSWERED = 2
    RESEND = 3
    FAIL = 4


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.QUEUED, Input.SENT): State.IN_FLIGHT,
    (State.QUEUED, Input.FAIL): State.FAILED,
    (State.IN_FLIGHT, Input.HELD): State.IN_FLIGHT,
    (State.IN_FLIGHT, Input.ANSWERED): State.COMPLETED,
    (State.IN_FLIGHT, Input.RESEND): State.REQUEUED,
    (State.IN_FLIGHT, Input.FAIL): State.FAILED,
    (State.REQUEUED, Input.SENT): State.IN_FLIGHT,
    (State.REQUEUED, Input.FAIL): State.FAILED,
}


class IllegalTransition(Exception):
    """A pair that is not in TRANSITIONS."""


class InFlightRequest:
    """One request; `context` belongs to the binding (its future, its buffers)."""

    __slots__ = (
        "action",
        "answer",
        "api",
        "context",
        "correlation_id",
        "deadline",
        "expected",
        "first_sent_at",
        "history",
        "is_held",
        "is_probe",
        "is_proven",
        "is_repeat_harmless",
        "lost_at",
        "needs_proof",
        "order",
        "overtaken_at",
        "request",
        "resends",
        "response",
        "sent_at",
        "state",
    )

    def __init__(
        self, request: Any, correlation_id: int, order: int, deadline: float, action: Action, context: Any
    ) -> None:
        self.request = request
        self.api: str = request.name
        self.correlation_id = correlation_id
        self.order = order  # among all requests of the connection; a resent one keeps it
        self.deadline = deadline
        self.action = action
        self.context = context
        self.is_repeat_harmless = (
            action is Action.SAME_BYTES or request.API_KEY == FETCH or getattr(request, "is_repeat_harmless", False)
        )
        self.expected: float = request.expected_ms / 1000
        self.state = State.QUEUED
        self.is_probe = False
        self.is_held = False
        self.is_proven = False  # while held: something sent later was answered
        self.needs_proof = False  # while held: it may be the answer of an older request, lost since
        self.response: Any = None
        self.answer: memoryview | None = None
        self.first_sent_at = self.sent_at = -1.0
        self.overtaken_at = self.lost_at = NEVER
        self.resends = 0
        self.history: list[str] = []

    def move(self, happened: Input) -> None:
        """Changes the state as the table says; raises IllegalTransition for a pair not in it."""
        state = TRANSITIONS.get((self.state, happened))
        if state is None:
            raise IllegalTransition(f"{self.api} is {self.state.name}: {happened.name}")
        self.state = state

    @property
    def is_unanswered(self) -> bool:
        return self.state is State.IN_FLIGHT and not self.is_held
