"""Every benchmark, one after the other, beside its peers: one JSON file and the page of the documentation site.

    python tests/bench/whole.py [PART ...] [--short] [--folder build/bench] [--page docs/measured.md]

Each part is a command of its own (tests/bench/PART.py), runs its peers in turns, and keeps its figures in FOLDER; a part
that fails is named, and the others still run.  --short measures a few cells with small topics, to compare two commits
(compare.py): its absolute figures mean nothing.  --page also writes the tables as a page, with their plots.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from figures import Figure, Report, machine, markdown

_HERE = Path(__file__).parent

# Arguments of a whole run, and of a short one.
PARTS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "copy": ("mirror", (), ("--records", "1000000", "--sizes", "100", "--codecs", "none", "--peers", "mm2,engine")),
    "nasty": ("mirror", ("--data", "nasty", "--repeat", "3"), ()),
    "latency": ("mirror", ("--latency",), ("--latency", "--peers", "mm2,engine", "--warm-up", "5", "--seconds", "5")),
    "partitions": ("many_partitions", (), ("--topics", "10")),
    "consume": ("consume", (), ("--records", "200000", "--cases", "100 B", "1 KB")),
    "produce": ("produce", (), ("--pairs", "3", "--codecs", "none", "--acks", "idempotent")),
    "clients": ("clients", ("--rounds", "3"), ("--faults", "drop,reset", "--clients", "ours,stock", "--seconds", "8")),
    "spark": ("spark_source", (), ("--do", "read,write", "--scale", "0.2")),
    "tracker": ("bench_tracker", (), ()),
}


def run(part: str, folder: Path, *, is_short: bool) -> tuple[Figure, ...]:
    """Runs one part; raises CalledProcessError where it fails."""
    script, whole, short = PARTS[part]
    path = folder / f"{part}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(_HERE / f"{script}.py"), *(short if is_short else whole), "--json", str(path)]
    subprocess.run(command, check=True)
    return Report.load(path).figures


def page(report: Report) -> str:
    """The page of a whole run."""
    facts = "\n".join(f"| {name} | {value} |" for name, value in report.machine.items())
    return (
        "# The last whole run\n\n"
        "Written by `tox run -e bench-all -- --page docs/measured.md`, which runs every peer beside us. Each cell is the\n"
        "median of its rounds; ± is half the distance between the extremes, shown from 5 % on; the ratio is to the first\n"
        f"peer of the table.\n\n{markdown(report.figures)}\n## Machine and versions\n\n| what | value |\n|---|---|\n{facts}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"))
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = [part for part in options.parts or PARTS if not options.short or PARTS[part][2]]
    found: list[Figure] = []
    failed: list[str] = []
    for part in parts:
        began = time.monotonic()
        try:
            found += run(part, options.folder, is_short=options.short)
        except (subprocess.CalledProcessError, OSError) as error:
            failed.append(part)
            print(f"{part}: NOT MEASURED, {error}", flush=True)
        else:
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
    report = Report(machine=machine(), figures=tuple(found))
    report.save(options.folder / "bench.json")
    print(markdown(found))
    print(f"All figures: {options.folder / 'bench.json'}")
    if options.page is not None and not failed:
        options.page.write_text(page(report), encoding="utf-8")
    if failed:
        print(f"Not measured: {', '.join(failed)}")
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
