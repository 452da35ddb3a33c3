"""The engine in one process, without Spark: python tests/bench/engine.py SOURCE TARGET TOPIC [TAIL_SECONDS [GAP_FILL]].

Copies the topic up to the log ends seen at the start, or goes on for
TAIL_SECONDS; prints what it did as one JSON line.
"""

from __future__ import annotations

import json
import sys
import time

from support.raising_copier import LinkCopier
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.prepare import prepare_link

LINK = "bench"


def main(source_servers: str, target_servers: str, topic: str, tail_s: str = "0", gap_fill: str = "auto") -> None:
    hold_ms = int(float(tail_s) * 1000)
    with Cluster({"bootstrap_servers": source_servers}, name="source") as source:
        target = Cluster({"bootstrap_servers": target_servers}, source.net, name="target")

        async def copy() -> tuple[float, list[Progress]]:
            policy = MirrorPolicy(GapFill(gap_fill))
            link = await prepare_link(source, target, topic, LINK, policy)
            began = time.monotonic()
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=LINK, policy=policy)
            until = {p: None if hold_ms else end for p, end in link.ends.items()}
            return began, list((await copier.copy(until, hold_ms=hold_ms)).values())

        began, done = source.run(copy)
        seconds = time.monotonic() - began
        target.close()
    print(
        json.dumps(
            {
                "records": sum(p.records for p in done),
                "bytes": sum(p.bytes for p in done),
                "filled": sum(p.filled for p in done),
                "troubles": sum(p.troubles for p in done),
                "copy_seconds": round(seconds, 3),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
