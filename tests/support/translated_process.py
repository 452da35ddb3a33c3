"""One copier of a link with translated offsets as a process of its own, to be raced and killed: source target topics link.

Prints "copying" once the link is prepared and "done" at the end.
"""

from __future__ import annotations

import sys

from raising_copier import LinkCopier

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets

# Small transactions: a writer that is killed has always done a part only.
LIMITS = TransactionLimits(linger_ms=5, commit_ms=20, commit_bytes=30_000, takeover_ms=500)


def main(source_servers: str, target_servers: str, topics: str, link: str) -> None:
    with Cluster({"bootstrap_servers": source_servers}, name="source") as source:
        target = Cluster({"bootstrap_servers": target_servers}, source.net, name="target")

        async def copy() -> None:
            prepared = await prepare_link(source, target, topics, link, is_translated=True)
            print("copying", flush=True)
            await LinkCopier(source, target, translated_offsets(LIMITS), link=link).copy(prepared.ends)

        try:
            source.run(copy)
        finally:
            target.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
