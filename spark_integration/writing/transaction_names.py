"""The transactional ids of a query's tasks: which one an attempt uses, and which are free again.

How: an id that nobody uses is an empty file of the executor, named by the micro-batch that used the id last.

Laws:
- Whoever removes an id's file has the id: a file system lets one process do so.  So no two attempts have one id, whether
  they are copies of a task, attempts of a stage, or left over from an executor that Spark believes lost.
- An attempt takes only what an earlier micro-batch of its own run has used: that one is settled (exactly_once.py, law B),
  so whatever transaction the id still has open belongs to no decision.
- An attempt gives its id back once its transaction waits for the driver.  One that fails or is killed does not: a request
  of it may still be on its way, and InitProducerId aborts whatever the id has open by then.
- Files save ids, nothing else: where there are none, or they cannot be used, an attempt has a new id.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_integration.writing.exactly_once import SinkBatch

log = logging.getLogger(__name__)

# Spark gives its Python workers the folders of their executor's blocks, which end with the executor.
_FOLDERS: Final = "SPARK_LOCAL_DIRS"
_FREE: Final = re.compile(r"(\d+)-([0-9a-f]{12})")  # an id, and the micro-batch that used it last


@contextlib.contextmanager
def transactional_id(place: SinkBatch) -> Iterator[str]:
    """The id for one attempt of a task; free for later micro-batches after the block, unless that raises."""
    folder = _folder(place)
    name = (_taken(folder, place.batch) if folder else None) or uuid.uuid4().hex[:12]
    yield f"{place.prefix}{place.run}/{name}"
    if folder:
        try:
            folder.mkdir(exist_ok=True)
            (folder / f"{place.batch}-{name}").touch()
        except OSError as error:
            log.warning("The transactional id %r is not used again: %s", name, error)


def _folder(place: SinkBatch) -> Path | None:
    """The folder of the ids of this run; None for a batch write, which has no later micro-batch."""
    roots = [root for root in os.environ.get(_FOLDERS, "").split(",") if root and os.access(root, os.W_OK | os.X_OK)]
    if not roots or not place.owner:
        return None
    return Path(roots[0], f"tolerant-sink-{hashlib.sha256(f'{place.prefix}{place.run}'.encode()).hexdigest()[:32]}")


def _taken(folder: Path, batch: int) -> str | None:
    """An id of a micro-batch before this one, which is now the caller's; None if none is free."""
    with contextlib.suppress(OSError):  # there is no folder before the first id is given back
        for file in os.listdir(folder):
            free = _FREE.fullmatch(file)
            if free and int(free[1]) < batch:
                with contextlib.suppress(FileNotFoundError):  # another attempt was quicker
                    (folder / file).unlink()
                    return free[2]
    return None
