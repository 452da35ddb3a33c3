"""Where the two logs of a partition start and end, and which of their offsets are compared."""

from __future__ import annotations

from typing import NamedTuple

from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS


class Logs(NamedTuple):
    """Bounds of both logs of a partition; the source's end is the last stable offset.

    Before the link began, the target's log up to `adopted` was found to equal the source's, whoever wrote it.
    """

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    adopted: int = 0

    @property
    def common(self) -> tuple[int, int]:
        """The offsets to compare: beyond `adopted` only the link has written."""
        return max(self.source_start, self.target_start, self.adopted), min(self.source_end, self.target_end)

    @property
    def has_common(self) -> bool:
        start, end = self.common
        return start < end

    @property
    def is_written(self) -> bool:
        return self.target_end > self.target_start

    @property
    def written_from(self) -> int:
        """The offset from which on the target's log has what the link may have written."""
        return max(self.target_start, self.adopted)

    @property
    def window(self) -> tuple[int, int]:
        """The last part of the offsets to compare."""
        start, end = self.common
        return max(start, end - COMPARED_OFFSETS), end
