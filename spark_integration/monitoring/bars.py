"""A link's progress in the terminal: a bar for each topic, or one for all where they are many."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from spark_integration.mirroring.link_state import LinkState, TopicState, together

_MOST_BARS = 20  # more topics than these are one bar


class LinkBars:
    """Progress bars on standard error, or on `console`; shows nothing unless `is_shown`, but prints all the same.

    With `is_once` the bars end at the goals that `show` gets, else at the source's present ends.
    """

    def __init__(self, *, is_once: bool, is_shown: bool, console: Console | None = None) -> None:
        self._is_once = is_once
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}", style="progress.download", justify="right"),
            TextColumn("{task.fields[rate]}", justify="right"),
            TextColumn("{task.fields[state]}"),
            *([TimeRemainingColumn()] if is_once else []),
            console=console or Console(stderr=True),
            disable=not is_shown,
        )
        self._bars: dict[str, TaskID] = {}

    @property
    def is_shown(self) -> bool:
        return not self.progress.disable

    def print(self, text: str) -> None:
        """A line above the bars."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, state: LinkState, goals: Mapping[str, int]) -> None:
        """Draws what is known of the link."""
        rows = list(state.topics.values())
        if len(rows) > _MOST_BARS:
            every = together(f"{len(rows):,} topics", rows)
            rows, goals = [every], {every.topic: sum(goals.values())}
            for bar in [self._bars.pop(topic) for topic in list(self._bars) if topic != every.topic]:
                self.progress.remove_task(bar)
        for row in rows:
            goal = goals.get(row.topic, 0) if self._is_once else row.source_end or 0
            if row.topic not in self._bars:
                self._bars[row.topic] = self.progress.add_task(row.topic, total=goal, rate="", state="")
            self.progress.update(
                self._bars[row.topic],
                completed=min(row.target_end or 0, goal),
                total=goal,
                rate=f"{row.records_per_s:,.0f} rec/s",
                state=self._state(state, row),
            )

    def _state(self, state: LinkState, row: TopicState) -> str:
        if state.unreachable:
            return f"no answer from the {' and '.join(state.unreachable)}"
        if row.paused:
            return f"{row.paused} paused"
        return "" if self._is_once or not row.lag_offsets else f"{row.lag_offsets:,} behind"
