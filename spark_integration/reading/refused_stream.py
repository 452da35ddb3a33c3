"""A stream whose options are refused: Spark hears of it in its first question, and the error ends the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tolerant_client.errors import OptionError


class RefusedStream(DataSourceStreamReader):
    """Raises the error in everything that Spark asks of a stream."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as Spark calls a stream without read limits
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error
