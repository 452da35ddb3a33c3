"""Two runs of bench-all: what has become faster or slower beside its peer, and whether by more than a margin.

    python tests/bench/compare.py BEFORE.json AFTER.json [--margin 0.3]

Compared are ratios to the peer of the same run, never times.  The exit code is 1 if a cell lost more than the margin or
is missing, 2 if nothing can be compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from figures import BASES, Report, changes
from rich.console import Console
from rich.table import Table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--margin", type=float, default=0.3, help="the share of a ratio that may be lost")
    options = parser.parse_args()
    before, after = Report.load(options.before), Report.load(options.after)
    found = list(changes(before, after))
    table = Table("table", "unit", "row", "peer", "ratio before", "ratio after", "gain")
    for change in sorted(found, key=lambda change: change.gain):
        is_worse = change.gain < 1 - options.margin
        gain = f"{change.gain:.2f}{'  WORSE' if is_worse else ''}"
        table.add_row(*change.place, f"{change.before:.3g}", f"{change.after:.3g}", gain)
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    if not found:
        print("No cell is in both runs together with its peer: nothing is compared")
        return 2
    compared = {change.place for change in found}
    missing = [f.place for f in before.figures if f.peer != BASES[f.table] and f.place not in compared]
    for place in missing:
        print(f"MISSING in {options.after}: {', '.join(place)}")
    worst = min(found, key=lambda change: change.gain)
    return 1 if missing or worst.gain < 1 - options.margin else 0


if __name__ == "__main__":
    sys.exit(main())
