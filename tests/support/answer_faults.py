"""What can be wrong with an answer, as frozen values, and what the counters must say then.

A fault is put on the answers of one burst of requests.  `spoil(burst)` returns
what arrives instead; `account(cell)` says what must be counted, by these rules:

- `lose(k)`: k requests are lost, and sent again or failed, as their API allows.
- While a request is in flight that belongs to the connection's own set-up
  (Action.CLOSE), the first mismatch retires the connection: `retired(done)`.
- Two answers that fit nothing retire it at any time.
- A fault that lasts spoils every answer from the victim's on, those to probes as well.
- The victim stands in the middle of the burst, so that at depth 1 it is the last
  one, and a loss is found by silence instead of by a later answer.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kafka.protocol.broker_version_data import BrokerVersionData

from support.fake_broker import correlation_id_of, set_correlation_id
from support.samples import CANARY, PER_PARTITION, Sample, encoded, filled, response_class, sample
from tolerant_client.stock.probe_question import harmless_question
from tolerant_client.tracker.correlation import SPACE
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.apis import Action
from tolerant_client.tracker.rules.requests import adapt

Account = Counter[str]

LATE = 5.0  # seconds: long after every grace, long before every deadline
STALL = 1.0
REQUEST_TIMEOUT = 30.0
FLOOD = 65
DEEP = 64  # requests in flight
_NOBODY = 1 << 29  # added to an id: far from all that were drawn


@dataclass
class Burst:
    """The answers of one burst, in order, and what else a fault may use."""

    frames: list[bytes]
    victim: int
    old: bytes
    """The answer of a request that was completed before."""
    sample: Sample
    unasked: bytes | None = None
    """An answer to a request with acks=0 that was sent just before the burst."""

    @property
    def spoiled(self) -> bytes:
        return self.frames[self.victim]

    def with_victim(self, *instead: bytes | Piece) -> list[Piece]:
        """Everything in order, the victim's answer replaced."""
        before, after = self.frames[: self.victim], self.frames[self.victim + 1 :]
        middle = [p if isinstance(p, Piece) else Piece(p) for p in instead]
        return [*map(Piece, before), *middle, *map(Piece, after)]


@dataclass(frozen=True)
class Piece:
    """Bytes that arrive `delay` seconds later than they should, or the connection's reset."""

    data: bytes
    delay: float = 0.0
    is_reset: bool = False


@dataclass(frozen=True)
class Cell:
    """One field of the matrix."""

    fault: Fault
    sample: Sample
    depth: int
    phase: str
    action: Action
    alike: int
    """How many of the later requests the victim's answer would pass for; the next one is the first of them."""
    expected: float = 0.0
    """How long a broker may rightly wait with an answer, in seconds."""
    yields: bool = False
    """True where a repeat would undo the next request, so that it is not sent again once that one is."""
    needs_more: bool = False
    """True where silence and a probe's answer alone do not settle a lost request."""
    doubted: tuple[int, ...] = (0, 0, 0, 0)
    """Without so many answers from the victim's on: how many later ones are doubted, as they pass for a missing one."""

    @property
    def victim(self) -> int:
        return (self.depth - 1) // 2

    @property
    def has_later(self) -> bool:
        return self.victim < self.depth - 1

    def has(self, more: int) -> bool:
        """True when at least so many answers come after the victim's."""
        return self.victim + more < self.depth

    @property
    def seed(self) -> str:
        return f"{self.fault.name} | {self.sample.name} | depth {self.depth} | {self.phase}"

    def waits(self, lost: int) -> bool:
        """True where the last `lost` requests, and nothing but silence tells of it, wait for their deadline."""
        return self.needs_more and not self.has(lost)

    # -- accounts -------------------------------------------------------------

    def fine(self, **more: int) -> Account:
        """All are answered."""
        return count(completed=self.depth, **more)

    def lose(self, requests: int = 1, **more: int) -> Account:
        """So many, from the victim on, are lost and settled as their API allows; the rest is answered."""
        again = requests if self.action.is_resend else 0
        if self.yields:
            again = min(again, 1) if self.victim + requests == self.depth else 0
        failed = requests - again
        return count(completed=self.depth - failed, lost=requests, requeued=again, failed=failed, **more)

    def over(self, done: int, **more: int) -> Account:
        """The connection ends when so many are answered."""
        return count(completed=done, failed=self.depth - done, **more)

    def retired(self, done: int | None = None, **more: int) -> Account:
        return self.over(self.victim if done is None else done, retired=1, **more)

    @property
    def is_setup(self) -> bool:
        return self.action is Action.CLOSE


def count(**kinds: int) -> Account:
    """A counter without zeros; `orphan_late` stands for `orphan:late`."""
    return Counter({k.replace("orphan_", "orphan:"): n for k, n in kinds.items() if n})


@dataclass(frozen=True)
class Fault:
    """One thing that can go wrong; see the module."""

    name: str
    spoil: Callable[[Burst], list[Piece]]
    account: Callable[[Cell], Account]
    swallowed: int = 0
    """So many requests from the victim on never reach the broker."""
    recovers: bool = True
    """Everything is settled within the policy's bound, not only within the deadline."""
    lasting: Callable[[bytes], bytes | None] | None = None
    """What becomes of every answer from the victim's on, for good; None for nothing."""
    stall: float = 0.0
    """Nothing arrives for so long from the victim's answer on (infinite: never again)."""
    step: int | None = None
    fits: Callable[[Cell], bool] = field(default=lambda cell: True)
    """False where the fault cannot exist, or where no client could see it."""
    sends_acks_0: bool = False
    is_meant: bool = False
    """What may not be sent again is completed by the answer to request ODD."""
    may_wrap: bool = True
    """False where small correlation ids would make another fault of it."""
    bounded: tuple[str, ...] = ()
    """Counts with an upper limit instead of a value: {kind: limit} is in the account."""

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


# -- what arrives -------------------------------------------------------------


def _frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def _body(frame: bytes) -> bytes:
    return frame[8:]


def _with_body(frame: bytes, body: bytes) -> bytes:
    return _frame(correlation_id_of(frame), body)


def _under(shift: Callable[[Burst], int]) -> Callable[[Burst], list[Piece]]:
    return lambda burst: burst.with_victim(set_correlation_id(burst.spoiled, shift(burst)))


def _neighbour(by: int) -> Callable[[Burst], int]:
    return lambda burst: (correlation_id_of(burst.spoiled) + by) % SPACE


def _without(how_many: int) -> Callable[[Burst], list[Piece]]:
    def spoil(burst: Burst) -> list[Piece]:
        v = burst.victim
        return [Piece(f) for f in burst.frames[:v] + burst.frames[v + how_many :]]

    return spoil


def _as_sent(burst: Burst) -> list[Piece]:
    return [Piece(f) for f in burst.frames]


def _swap(burst: Burst) -> list[Piece]:
    v, frames = burst.victim, burst.frames
    return [Piece(f) for f in [*frames[:v], frames[v + 1], frames[v], *frames[v + 2 :]]]


def _cross(burst: Burst) -> list[Piece]:
    v, frames = burst.victim, burst.frames
    first, second = _with_body(frames[v], _body(frames[v + 1])), _with_body(frames[v + 1], _body(frames[v]))
    return [Piece(f) for f in [*frames[:v], first, second, *frames[v + 2 :]]]


def _exchange_ids(burst: Burst) -> list[Piece]:
    """In the order of requests, as a broker answers, and under each other's ids."""
    v, frames = burst.victim, burst.frames
    ids = [correlation_id_of(frames[v]), correlation_id_of(frames[v + 1])]
    first, second = set_correlation_id(frames[v], ids[1]), set_correlation_id(frames[v + 1], ids[0])
    return [Piece(f) for f in [*frames[:v], first, second, *frames[v + 2 :]]]


def _foreign(burst: Burst, distance: int = _NOBODY) -> bytes:
    return set_correlation_id(burst.old, (correlation_id_of(burst.spoiled) + distance) % SPACE)


def _flood(burst: Burst) -> list[Piece]:
    return burst.with_victim(*(_foreign(burst, _NOBODY + n) for n in range(FLOOD)), burst.spoiled)


def _shifted(by: int) -> Callable[[bytes], bytes | None]:
    return lambda frame: set_correlation_id(frame, (correlation_id_of(frame) + by) % SPACE)


def _merged(burst: Burst) -> list[Piece]:
    return [Piece(b"".join(burst.frames))]


def _reset(inside: bool) -> Callable[[Burst], list[Piece]]:
    def spoil(burst: Burst) -> list[Piece]:
        frame = burst.spoiled
        shown = frame[: len(frame) // 2] if inside else frame
        return [*map(Piece, burst.frames[: burst.victim]), Piece(shown), Piece(b"", is_reset=True)]

    return spoil


def _with_length(length: Callable[[bytes], int]) -> Callable[[Burst], list[Piece]]:
    return lambda burst: burst.with_victim(struct.pack(">i", length(burst.spoiled)) + burst.spoiled[4:])


def _shortened(burst: Burst) -> list[Piece]:
    """Four bytes of the body are missing, the length is as before: it takes the next frame's length in."""
    following = burst.frames[burst.victim + 1] if burst.victim + 1 < len(burst.frames) else probe_answer()
    at = cut_at(burst.sample, _body(burst.spoiled), following[:4])
    assert at is not None
    return burst.with_victim(burst.spoiled[: 8 + at] + burst.spoiled[8 + at + 4 :])


@cache
def _nothing() -> bytes:
    question = harmless_question(BrokerVersionData((4, 2)))
    assert question is not None
    return encoded(filled(response_class(apis.METADATA), question.API_VERSION, 0, {"topics": []}))


def probe_answer(correlation_id: int = 0) -> bytes:
    """What this broker answers to a Metadata request of no topic."""
    return _frame(correlation_id, _nothing())


# -- what an answer's bytes can tell ------------------------------------------


def is_readable(item: Sample, body: bytes) -> bool:
    """Whether kafka-python's own decoder takes these bytes, to the last one.

    Where it does, no client could tell that they are wrong: answers carry no checksum.
    """
    answer_class = response_class(item.api_key)
    is_flexible = answer_class.flexible_version_q(item.version)
    decode = answer_class._struct.compiled_decode_from(
        item.version, compact=is_flexible, tagged=is_flexible, data_class=answer_class[None]
    )
    data = io.BytesIO(b"\0\0\0\0" + body)
    try:
        answer_class.parse_header(data, version=item.version)
        _, end = decode(memoryview(body), data.tell() - 4)
    except Exception:  # a decoder on hostile bytes may raise anything
        return False
    return bool(end == len(body))


@cache
def flip_at(sample: Sample, body: bytes) -> int | None:
    """Where one flipped bit makes an answer unreadable: in a count or a length, from the end."""
    return next((at for at in reversed(range(len(body))) if not is_readable(sample, _flipped(body, at))), None)


def _flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]


def _flip(burst: Burst) -> list[Piece]:
    body = _body(burst.spoiled)
    at = flip_at(burst.sample, body)
    assert at is not None
    return burst.with_victim(_with_body(burst.spoiled, _flipped(body, at)))


@cache
def cut_at(sample: Sample, body: bytes, following: bytes) -> int | None:
    """Where four missing bytes make an answer unreadable."""
    places = range(0, len(body) - 3)
    return next((at for at in places if not is_readable(sample, body[:at] + body[at + 4 :] + following)), None)


ODD = 10 * DEEP  # the number of a request that nobody sends: its answer speaks of something else


@cache
def speaks_of_something_else(item: Sample, n: int) -> bool:
    """Whether a request tells that an answer is that to request ODD."""
    request = adapt(item.request(n))
    request.frame_buffers(0, "")
    try:
        request.decode_response(memoryview(item.body(ODD)))
    except apis.OtherSubject:
        return True
    return False


@cache
def another(item: Sample) -> bytes:
    """The body of an answer of another API that does not happen to be readable as one of this API."""
    others = (sample(name).body(1) for name in ("Metadata", "DescribeQuorum", "OffsetFetch", "ListOffsets", "Produce"))
    return next(body for body in others if not is_readable(item, body))


# -- what must be counted -----------------------------------------------------


def _dropped(how_many: int) -> Callable[[Cell], Account]:
    def account(c: Cell) -> Account:
        lost = min(how_many, c.depth - c.victim)
        if c.is_setup:
            return c.retired()
        if c.waits(lost):
            return c.retired(probe=1)
        # Either nothing comes later, and silence is probed; or a later answer puts the stream on trial.
        # In silence an older commit is not settled while a newer one is sent again; that one's answer overtakes it.
        is_overtaken_later = c.yields and lost > 1 and not c.has(lost)
        # Where that answer passes for the older one's, it is asked for once more.
        again = int(is_overtaken_later and c.alike > 0)
        return c.lose(lost + c.doubted[lost], probe=2 if is_overtaken_later else 1) + count(lost=again, requeued=again)

    return account


def _swallowed_account(c: Cell) -> Account:
    account = _dropped(1)(c)
    if c.sample.is_idempotent:
        # The batches behind it are refused, held, and asked for again once it is written.
        last = min(c.depth, (c.victim // PER_PARTITION + 1) * PER_PARTITION) - 1
        account["requeued"] += last - c.victim - c.doubted[1]
    return +account


def _misnumbered(cause: str) -> Callable[[Cell], Account]:
    """The victim's answer came under an id that nobody waits for: a probe, and no grace."""

    def account(c: Cell) -> Account:
        if c.is_setup:
            return c.retired(**{f"orphan_{cause}": 1})
        return c.lose(1 + c.doubted[1], probe=1, **{f"orphan_{cause}": 1})

    return account


def _next_id_account(c: Cell) -> Account:
    if not c.has_later:
        return _misnumbered("unknown")(c)
    if c.is_setup:
        return c.retired()
    # Where it passes for the next one's, there are two different answers for one request: neither is believed.
    return c.lose(min(2, 1 + c.alike), probe=1, orphan_misfit=1)


def _extra(cause: str) -> Callable[[Cell], Account]:
    """A stranger's answer before the victim's: dropped, and a probe asks for the suspect."""

    def account(c: Cell) -> Account:
        if c.is_setup:
            return c.retired(**{f"orphan_{cause}": 1})
        return c.fine(probe=1, **{f"orphan_{cause}": 1})

    return account


def _duplicate_account(c: Cell) -> Account:
    if not c.has_later:
        return c.fine(orphan_duplicate=1)
    if c.is_setup:
        return c.retired(c.victim + 1, orphan_duplicate=1)
    return c.fine(orphan_duplicate=1, probe=1)


def _reordered_account(c: Cell, at_most: int = DEEP) -> Account:
    if not c.has_later:
        return c.fine()
    if c.is_setup:
        return c.retired()
    # Nothing tells late from exchanged with any of those that it would pass for.
    overtook = min(c.alike, at_most)
    return c.lose(1 + overtook, orphan_misfit=1, probe=1) if overtook else c.fine(reordered=1)


def _too_late_account(c: Cell) -> Account:
    if c.is_setup:
        return c.retired() if c.has_later else c.fine()  # it was waited for
    if c.waits(1):
        return c.fine(probe=1)
    return c.lose(1 + c.doubted[1], orphan_late=1, probe=1)


def _odd_account(c: Cell) -> Account:
    if c.sample.api_key == apis.PRODUCE:
        return _misnumbered("misfit")(c)  # kafka-python's producer could not act upon it
    if not c.action.is_resend:
        return c.fine(probe=1)
    is_newer_sent = c.yields and c.has_later  # then no repeat is safe
    return c.fine(probe=1) if is_newer_sent else c.fine(requeued=1, probe=1)


def _crossed_account(c: Cell) -> Account:
    return c.retired(orphan_misfit=2, probe=1)


def _exchanged_account(c: Cell) -> Account:
    return _reordered_account(c, 1) if c.alike else _crossed_account(c)


def _shortened_account(c: Cell) -> Account:
    if c.is_setup and not c.has_later:
        return c.retired()
    # Where nothing comes later, the missing bytes are taken from the answer of a probe for the silence.
    return c.retired(orphan_misfit=1, probe=0 if c.is_setup else 1 if c.has_later else 2)


def _flood_account(c: Cell) -> Account:
    if c.is_setup:
        return c.retired(orphan_unknown=1)
    return c.retired(orphan_unknown=2, probe=1)


def _probes_while_silent(c: Cell, seconds: float) -> int:
    """At most: after what the request may take and a generous round trip, then a second later, then two..."""
    if c.is_setup:
        return 0
    probes, at, pause = 0, c.expected + 0.2, 1.0
    while at < seconds:
        probes, at, pause = probes + 1, at + pause, 2 * pause
    return probes


def _stalled_account(c: Cell) -> Account:
    return c.fine(probe=_probes_while_silent(c, STALL))


def _timed_out_account(c: Cell) -> Account:
    return c.retired(probe=_probes_while_silent(c, REQUEST_TIMEOUT))


def _unasked_account(c: Cell) -> Account:
    return c.fine(orphan_unasked=1, probe=0 if c.is_setup else 1)


def _lasting_account(c: Cell) -> Account:
    """Nothing that comes from the victim's answer on is believed."""
    return c.retired()


def _id_zero_account(c: Cell) -> Account:
    if c.sample.name == "FindCoordinator of 0.8.2":
        return c.fine()
    return _misnumbered("unknown")(c)


def _detectable_flip(c: Cell) -> bool:
    return flip_at(c.sample, c.sample.body(c.victim)) is not None


def _detectable_cut(c: Cell) -> bool:
    following = struct.pack(">i", 4 + len(c.sample.body(c.victim + 1)) if c.has_later else 10)
    return cut_at(c.sample, c.sample.body(c.victim), following) is not None


def _two(c: Cell) -> bool:
    return c.has_later


FAULTS: tuple[Fault, ...] = (
    Fault("drop", _without(1), _dropped(1)),
    Fault("drop before execution", _as_sent, _swallowed_account, swallowed=1),
    Fault("drop two in a row", _without(2), _dropped(2)),
    Fault("skip three answers", _without(3), _dropped(3)),
    Fault("duplicate", lambda b: b.with_victim(b.spoiled, b.spoiled), _duplicate_account),
    Fault(
        "duplicate later",
        lambda b: [*_as_sent(b), Piece(b.spoiled, LATE)],
        lambda c: c.fine(orphan_duplicate=1),
    ),
    Fault("swap with the next", _swap, lambda c: _reordered_account(c, 1), fits=_two),
    Fault("reorder within the grace", lambda b: b.with_victim(Piece(b.spoiled, 0.004)), _reordered_account),
    Fault("late after it was declared lost", lambda b: b.with_victim(Piece(b.spoiled, LATE)), _too_late_account),
    Fault("an answer under an id never sent", lambda b: b.with_victim(_foreign(b), b.spoiled), _extra("unknown")),
    Fault("its id never sent", _under(lambda b: correlation_id_of(_foreign(b))), _misnumbered("unknown")),
    Fault("id + 1", _under(_neighbour(1)), _next_id_account),
    Fault("id - 1", _under(_neighbour(-1)), _misnumbered("duplicate")),
    Fault("id of a settled request", _under(lambda b: correlation_id_of(b.old)), _misnumbered("duplicate")),
    Fault("stale bytes again", lambda b: b.with_victim(b.old, b.spoiled), _extra("duplicate")),
    Fault("negative id", _under(lambda b: -1 - b.victim), _misnumbered("unknown")),
    Fault("id of Java's reserved range", _under(lambda b: 2**31 - 1 - b.victim % 8), _misnumbered("unknown")),
    Fault("id 0", _under(lambda b: 0), _id_zero_account, may_wrap=False),
    Fault("ids exchanged", _exchange_ids, _exchanged_account, fits=_two),
    Fault("answers crossed", _cross, _crossed_account, fits=lambda c: c.has_later and not c.alike),
    Fault(
        "truncated body, right length",
        lambda b: b.with_victim(_with_body(b.spoiled, _body(b.spoiled)[:-1])),
        _misnumbered("misfit"),
    ),
    Fault("cut body, length as before", _shortened, _shortened_account, fits=_detectable_cut, may_wrap=False),
    Fault(
        "one byte too many in the body",
        lambda b: b.with_victim(_with_body(b.spoiled, _body(b.spoiled) + b"\0")),
        _misnumbered("misfit"),
    ),
    Fault("flipped bit in a length", _flip, _misnumbered("misfit"), fits=_detectable_flip),
    Fault("empty body", lambda b: b.with_victim(_with_body(b.spoiled, b"")), _misnumbered("misfit")),
    Fault(
        "body of another API",
        lambda b: b.with_victim(_with_body(b.spoiled, another(b.sample))),
        _misnumbered("misfit"),
    ),
    Fault(
        "speaks of something else",
        lambda b: b.with_victim(_with_body(b.spoiled, b.sample.body(ODD))),
        _odd_account,
        fits=lambda c: speaks_of_something_else(c.sample, c.victim),
        is_meant=True,
    ),
    Fault("negative frame length", _with_length(lambda f: -1), lambda c: c.retired()),
    Fault("huge frame length", _with_length(lambda f: 1 << 30), lambda c: c.retired()),
    Fault("zero frame length", _with_length(lambda f: 0), lambda c: c.retired()),
    Fault("merged into one read", _merged, lambda c: c.fine()),
    Fault("one byte at a time", _as_sent, lambda c: c.fine(), step=1),
    Fault("stall, then the answer", _as_sent, _stalled_account, stall=STALL, recovers=False, bounded=("probe",)),
    Fault(
        "late after its timeout",
        _as_sent,
        _timed_out_account,
        stall=REQUEST_TIMEOUT + 1,
        recovers=False,
        bounded=("probe",),
    ),
    Fault("silence for ever", _as_sent, _timed_out_account, stall=float("inf"), recovers=False, bounded=("probe",)),
    Fault("an answer to acks=0", _as_sent, _unasked_account, sends_acks_0=True),
    Fault(
        "an HTTP server's answer",
        lambda b: b.with_victim(b"HTTP/1.1 400 Bad Request\r\n\r\n" + CANARY),
        lambda c: c.retired(),
    ),
    Fault("a TLS alert", lambda b: b.with_victim(b"\x15\x03\x03\x00\x02\x02\x28"), lambda c: c.retired()),
    Fault("reset inside a frame", _reset(inside=True), lambda c: c.over(c.victim)),
    Fault("reset between frames", _reset(inside=False), lambda c: c.over(c.victim + 1)),
    Fault("a flood of foreign ids", _flood, _flood_account),
    *(
        Fault(f"ids {shift:+d} for good", _as_sent, _lasting_account, lasting=_shifted(shift), may_wrap=False)
        for shift in (1, 3, 100, -1, -3)
    ),
    Fault("no answer for good", _as_sent, _lasting_account, lasting=lambda frame: None, recovers=False),
    Fault("garbled for good", _as_sent, _lasting_account, lasting=lambda frame: _with_body(frame, _body(frame)[:-1])),
)


# Their bytes come under an id that was settled before, which at the first request is an id never sent.
_OLD_IDS = ("id - 1", "id of a settled request", "stale bytes again")


def setup_account(cell: Cell, place: int, length: int) -> Account:
    """The account where the victim is one of `length` requests that follow each other, and then a caller's.

    ApiVersions when connecting, SaslHandshake and SaslAuthenticate after it or alone; each
    is sent when the one before it is answered, so that a mismatch right behind an answer
    meets the next one.
    """
    name = cell.fault.name
    if name == "duplicate":
        if place + 1 < length:
            return count(completed=place + 1, failed=1, orphan_duplicate=1, retired=1)
        return count(completed=length + 1, orphan_duplicate=1, probe=1)
    if name == "reset between frames":
        return count(completed=place + 1, failed=1)
    account = cell.fault.account(cell)
    if place == 0 and cell.phase == "connect" and name in _OLD_IDS:
        account["orphan:unknown"] = account.pop("orphan:duplicate")
    if account["failed"]:
        account.update({"completed": place - account["completed"]})
    else:
        account["completed"] = length + 1
    return +account


def draining_account(cell: Cell) -> Account:
    """The account where a re-authentication waits for the burst to be settled, and then runs (KIP-368)."""
    account = cell.fault.account(cell)
    if cell.fault.name == "duplicate" and not cell.has_later:
        # It meets the SaslHandshake that was sent as soon as the last answer was there.
        return account + count(retired=1, failed=1)
    if cell.fault.name == "reset between frames" and not cell.has_later:
        return account + count(failed=1)
    is_over = account["retired"] or cell.fault.name.startswith("reset")
    return account if is_over else account + count(completed=2)


def stock_settles_at(burst: Burst, pieces: list[Piece], stall: float) -> float:
    """When stock kafka-python has settled the burst, in seconds after the first answer could be there.

    It takes answers in the order of its requests, closes at the first that has
    another id or does not decode, and at the request timeout.
    """
    waiting = [correlation_id_of(frame) for frame in burst.frames]
    data, at = bytearray(), 0.0
    for place, piece in sorted(enumerate(pieces), key=lambda item: (item[1].delay, item[0])):
        at = max(piece.delay, stall if place >= burst.victim else 0.0)
        if at >= REQUEST_TIMEOUT:
            return REQUEST_TIMEOUT
        if piece.is_reset:
            return at
        data += piece.data
        while len(data) >= 4:
            (size,) = struct.unpack_from(">i", data)
            if not 4 <= size < 1 << 20:
                return at
            if len(data) < 4 + size:
                break
            frame = bytes(data[: 4 + size])
            del data[: 4 + size]
            if not waiting or correlation_id_of(frame) != waiting.pop(0) or not is_readable(burst.sample, _body(frame)):
                return at
            if not waiting:
                return at
    return REQUEST_TIMEOUT


def fault(name: str) -> Fault:
    """The fault of that name."""
    return next(f for f in FAULTS if f.name == name)


def as_answers(account: Any) -> str:
    """An account in one line."""
    return ", ".join(f"{kind} {n}" for kind, n in sorted(account.items())) or "nothing"
