"""Two kinds of client on the same broker, run after run in turns, and the ratio of each pair.

What else goes on at the machine hits both of a pair, which are neighbours in time; pairs alternate in which goes
first.  A ratio is quoted as the median of the pairs with their middle half.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from client_process import Job, Result
from clients import run_client
from figures import Figure


@dataclass(frozen=True)
class Ratio:
    """Median of the pairs, and the quartiles; of fewer than four pairs the extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        if len(values) < 4:
            return cls(statistics.median(values), min(values), max(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class Pairs:
    """The runs of one job as the client under test and as the base."""

    tested: list[Result]
    base: list[Result]

    @property
    def rate(self) -> Ratio:
        """Records per second, tested to base: above 1 is faster."""
        return Ratio.of([_rate(t) / _rate(b) for t, b in zip(self.tested, self.base)])

    @property
    def cpu(self) -> Ratio:
        """CPU seconds per record, tested to base: above 1 costs more."""
        return Ratio.of([_cpu(t) / _cpu(b) for t, b in zip(self.tested, self.base)])

    @property
    def base_rate(self) -> float:
        return statistics.median(map(_rate, self.base))

    @property
    def base_cpu(self) -> float:
        """Microseconds of CPU per record."""
        return statistics.median(map(_cpu, self.base)) * 1e6

    def figures(self, table: str, row: str, tested: str = "ours") -> Iterator[Figure]:
        """The rates of both, and what a record costs."""
        for peer, runs in ((tested, self.tested), ("stock", self.base)):
            rates, costs = tuple(map(_rate, runs)), tuple(_cpu(run) * 1e6 for run in runs)
            yield Figure(table=table, row=row, peer=peer, unit="records/s", values=rates)
            yield Figure(table=table, row=row, peer=peer, unit="CPU us a record", values=costs, is_cost=True)


def run_pairs(job: Job, tested: str, base: str, count: int) -> Pairs:
    """Runs `count` pairs of the job; raises SystemExit if a run was not complete."""
    pairs = Pairs([], [])
    for number in range(count):
        for client in (tested, base) if number % 2 else (base, tested):
            result = run_client(replace(job, client=client))
            if not result.is_complete or result.errors:
                raise SystemExit(f"{client}, {job.do}: not complete within {job.seconds} s: {result}")
            (pairs.tested if client == tested else pairs.base).append(result)
    return pairs


def _rate(result: Result) -> float:
    return result.records / result.seconds


def _cpu(result: Result) -> float:
    return result.cpu / result.records
