"""A link's progress in the terminal: a bar for each topic, or one bar for all if there are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tolerant_client.ops.printing import printable
from tolerant_client.ops.service.link_state import LinkState, TopicState, together

_MOST_BARS = 20  # more topics share one bar


class Terminal(Console):
    """A console that survives a closed terminal: rich's own would redirect standard output and end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LinkBars:
    """Progress bars on standard error, or on `console`; draws bars only if `is_shown`, but always prints lines.

    A closed terminal is no error: the bars are no longer shown.
    With `is_once` the bars end at the goals that `show` gets, otherwise at the source's current log ends.
    """

    def __init__(self, *, is_once: bool, is_shown: bool, console: Console | None = None) -> None:
        self._is_once = is_once
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}", style="progress.download", justify="right"),
            TextColumn("{task.fields[rate]}", justify="right"),
            TextColumn("{task.fields[state]}", markup=False),
            *([TimeRemainingColumn()] if is_once else []),
            console=console or Terminal(stderr=True),
            disable=not is_shown,
        )
        self._bars: dict[str, TaskID] = {}

    @property
    def is_shown(self) -> bool:
        return not self.progress.disable

    def start(self) -> None:
        """Shows the bars; idempotent."""
        self._write(self.progress.start)

    def stop(self) -> None:
        self._write(self.progress.stop)

    def print(self, text: str) -> None:
        """Prints a line above the bars."""
        self._write(lambda: self.progress.console.print(printable(text), markup=False, highlight=False, soft_wrap=True))

    def show(self, state: LinkState, goals: Mapping[str, int]) -> None:
        """Draws the link's state."""
        if self.is_shown:
            self._write(lambda: self._draw(state, goals))

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, ValueError):  # ValueError: the file is closed
            self.progress.disable = True

    def _draw(self, state: LinkState, goals: Mapping[str, int]) -> None:
        rows = list(state.topics.values())
        if len(rows) > _MOST_BARS:
            every = together(f"{len(rows):,} topics", rows)
            rows, goals = [every], {every.topic: sum(goals.values())}
            for bar in [self._bars.pop(topic) for topic in list(self._bars) if topic != every.topic]:
                self.progress.remove_task(bar)
        for row in rows:
            goal = goals.get(row.topic, 0) if self._is_once else row.source_end or 0
            if row.topic not in self._bars:
                self._bars[row.topic] = self.progress.add_task(printable(row.topic), total=goal, rate="", state="")
            self.progress.update(
                self._bars[row.topic],
                completed=min(row.target_end or 0, goal),
                total=goal,
                rate=f"{row.offsets_per_s:,.0f} offsets/s",
                state=self._state(state, row),
            )

    def _state(self, state: LinkState, row: TopicState) -> str:
        if state.unreachable:
            return f"no response from the {' and '.join(state.unreachable)}"
        counts = (("blocked", row.blocked), ("paused", row.paused), ("waiting", row.waiting))
        if said := ", ".join(f"{number} {word}" for word, number in counts if number):
            return said
        return "" if self._is_once or not row.lag_offsets else f"{row.lag_offsets:,} behind"
