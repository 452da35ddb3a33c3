"""A link in one process, without Spark, as an operator leaves it running: SOURCE TARGET TOPICS LINK [ON_LOSS [FETCH_BYTES]].

Looks for new topics and partitions every second; ends with exit code 1 at the first error.  Prints "up" once it
copies, each ledger row's count, and the error, as JSON lines.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from support.raising_copier import LinkCopier
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.prepare import prepare_link

_LEASE_MS = 60_000


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(
    source_servers: str, target_servers: str, topics: str, link: str, on_loss: str = "fail", fetch_bytes: str = ""
) -> int:
    policy = MirrorPolicy(on_loss=LossPolicy(on_loss), on_oversized=LossPolicy(on_loss))
    limits = CopyLimits(partition_max_bytes=int(fetch_bytes)) if fetch_bytes else CopyLimits()
    with Cluster({"bootstrap_servers": source_servers}, name="source") as source:
        target = Cluster({"bootstrap_servers": target_servers}, source.net, name="target")

        async def follow() -> None:
            copier: LinkCopier | None = None
            while True:
                prepared = await prepare_link(source, target, topics, link, policy)
                if copier is None:
                    copier = LinkCopier(
                        source, target, identical_offsets(prepared.producer_id), limits, link=link, policy=policy
                    )
                    say(up=sorted(f"{p.topic}-{p.partition}" for p in prepared.ends))
                # Held on to between two rounds: what takes longer than a round is not begun anew.
                progress = await copier.copy(dict.fromkeys(prepared.ends), hold_ms=1000, lease_ms=_LEASE_MS)
                for partition, done in progress.items():
                    if done.losses:
                        say(losses=done.losses, partition=f"{partition.topic}-{partition.partition}")

        try:
            source.run(follow)
        except TolerantClientError as error:
            say(error=str(error))
            return 1
        finally:
            target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
