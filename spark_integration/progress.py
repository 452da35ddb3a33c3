"""How far a query is behind, computed from its progress.

Spark's own Kafka source puts these figures into `metrics` of a source's progress
(KafkaMicroBatchStream.scala, metrics).  The API of Python sources has no
metrics, but the offsets from which they are computed are in the progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from spark_integration.reading.offsets import flat_offsets

_ONE_DIGIT: Final = Decimal("0.1")


def offsets_behind_latest(source: Any) -> dict[str, str]:
    """min-, max- and avgOffsetsBehindLatest of one entry of `sources` in a StreamingQueryProgress.

    Takes a SourceProgress, or the same as a dict; the figures are strings, as in
    Spark.  Empty before the first batch.
    """
    consumed, latest = (flat_offsets(_offsets(source, name)) for name in ("endOffset", "latestOffset"))
    behind = [offset - consumed.get(partition, 0) for partition, offset in latest.items()]
    if not behind or not consumed:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str((Decimal(sum(behind)) / len(behind)).quantize(_ONE_DIGIT, ROUND_HALF_UP)),
    }


def _offsets(source: Any, name: str) -> dict[str, dict[str, int]]:
    found = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    if isinstance(found, str):
        found = json.loads(found)
    return found or {}
