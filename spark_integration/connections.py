"""Clusters and producers that a Python worker process keeps between tasks, so that a micro-batch makes no new connections.

Laws:
- Each serves one borrower at a time; after an error it is closed, not kept.
- A child process never uses what its parent opened.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from tolerant_client.cluster.cluster import Cluster

POOL_SIZE: Final = 4  # clusters and producers; Spark reuses a worker process for tasks of any query
_pool: dict[tuple[int, bytes], Closable] = {}

_Kept = TypeVar("_Kept", bound="Closable")


class Closable(Protocol):
    """Something that is kept; it is closed when the pool needs its place, or the process ends."""

    def close(self) -> None: ...


def borrowed_cluster(
    config: Mapping[str, Any], *, name: str = "cluster", patience_ms: int = 60_000
) -> AbstractContextManager[Cluster]:
    """A cluster of this process's pool, for the time of the block; `name` and `patience_ms` are Cluster's."""
    what = ("cluster", name, patience_ms, sorted(config.items()))
    return borrowed(what, lambda: Cluster(config, name=name, patience_ms=patience_ms))


@contextlib.contextmanager
def borrowed(what: Any, make: Callable[[], _Kept]) -> Iterator[_Kept]:
    """The object kept under `what` (a value that pickles), or else a new one, for the time of the block."""
    # A digest of the pickle: objects that hide a secret in their repr would look equal whatever the secret.
    key = (os.getpid(), hashlib.sha256(pickle.dumps(what)).digest())
    kept: Any = _pool.pop(key, None) or make()
    try:
        yield kept
    except BaseException:
        kept.close()
        raise
    for inherited in [known for known in _pool if known[0] != os.getpid()]:
        _pool.pop(inherited)  # the parent's: not even closed
    while len(_pool) >= POOL_SIZE:
        _pool.pop(next(iter(_pool))).close()
    replaced = _pool.get(key)
    _pool[key] = kept
    if replaced is not None:
        replaced.close()


@atexit.register
def close_pool() -> None:
    """Closes what this process keeps; borrowers close what they have borrowed."""
    for key in [key for key in _pool if key[0] == os.getpid()]:
        _pool.pop(key).close()
