"""What a benchmark has measured, in one shape for all of them: files, Markdown tables, and the comparison of two runs.

A table has rows (what is measured), peers (who is measured) and a unit; each cell has one value a round.  A cell is
quoted as the median of its rounds, and as a ratio to the median of the table's base, the peer that ours is held against.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tolerant_client.testing.artifacts import java_executable

KAFKA_VERSION = "4.2.0"  # of MirrorMaker 2 and of the clusters that it copies between
BASES = {
    "copy": "mm2",
    "latency": "mm2",
    "partitions": "mm2",
    "clients": "stock",
    "consume": "stock",
    "produce": "stock",
    "tracker": "stock",
    "spark": "kafka",
}
_PACKAGES = ("tolerant-client", "kafka-python", "pyspark", "numpy", "pyarrow", "confluent-kafka", "aiokafka")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: the values of `peer` in `unit`, one for each round; of a cost, less is better."""

    table: str
    row: str
    peer: str
    unit: str
    values: tuple[float, ...]
    is_cost: bool = False

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What the figures of two runs have in common."""
        return self.table, self.unit, self.row, self.peer

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance between the extremes, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median if self.median else 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the machine and the versions, the figures, and whatever else a benchmark keeps of its rounds."""

    machine: dict[str, Any]
    figures: tuple[Figure, ...]
    raw: Any = None

    @classmethod
    def load(cls, path: Path) -> Report:
        """Raises OSError, and msgspec.MsgspecError for a file that is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def save(path: Path | None, figures: Iterable[Figure], raw: Any = None) -> None:
    """Writes the figures of this machine; nothing where no file was asked for."""
    if path is not None:
        Report(machine=machine(), figures=tuple(figures), raw=raw).save(path)


def machine() -> dict[str, Any]:
    """The machine and the versions."""
    java = subprocess.run([java_executable(), "-version"], capture_output=True, text=True, check=False)
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cores": os.cpu_count(),
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.machine(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "java": java.stderr.partition("\n")[0],
        "kafka": KAFKA_VERSION,
        **versions,
    }


# -- Markdown -------------------------------------------------------------------


def markdown(figures: Sequence[Figure]) -> str:
    """A table for each kind and unit; cells are medians, with the spread from 5 % on, and the ratio to the base."""
    parts = []
    for table, unit in dict.fromkeys((f.table, f.unit) for f in figures):
        own = {(f.row, f.peer): f for f in figures if (f.table, f.unit) == (table, unit)}
        base = BASES[table]
        peers = sorted({peer for _, peer in own}, key=lambda peer: peer != base)
        lines = [f"| {table}: {unit} | {' | '.join(peers)} |", "|---" * (len(peers) + 1) + "|"]
        for row in dict.fromkeys(row for row, _ in own):
            cells = [_cell(own.get((row, peer)), own.get((row, base))) for peer in peers]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        text = "\n".join(lines) + "\n"
        parts.append(text + f"\n<!-- plot: ratio to {base} -->\n" if " times)" in text else text)
    return "\n".join(parts)


def _cell(figure: Figure | None, base: Figure | None) -> str:
    if figure is None:
        return "not measured"
    text = f"{figure.median:,.0f}" if figure.median >= 100 else f"{figure.median:.3g}"
    if figure.spread >= 0.05:
        text += f" ±{figure.spread:.0%}"
    if base is None or base is figure or not base.median:
        return text
    return f"{text} ({figure.median / base.median:.2g} times)"


# -- two runs -------------------------------------------------------------------


class Change(msgspec.Struct, frozen=True):
    """A cell in two runs, each as its ratio to the base of the same run; `gain` above 1 is better than before."""

    place: tuple[str, str, str, str]
    before: float
    after: float
    gain: float


def changes(before: Report, after: Report) -> Iterator[Change]:
    """The cells of ours that both runs have, with their bases: the machine's own speed is no part of a ratio."""
    old = {f.place: f for f in before.figures}
    new = {f.place: f for f in after.figures}
    for place, figure in new.items():
        table, unit, row, peer = place
        base = table, unit, row, BASES[table]
        if place == base or place not in old or base not in old or base not in new:
            continue
        if not all(f.median for f in (old[place], old[base], new[base])):
            continue
        was, is_now = old[place].median / old[base].median, figure.median / new[base].median
        yield Change(place, was, is_now, was / is_now if figure.is_cost else is_now / was)
