"""One writer of a link as a process of its own, to be raced and killed: source target topics link.

Prints "copying" once the link is prepared and "done" at the end; an error goes
to stderr and gives exit code 1.
"""

from __future__ import annotations

import sys

from kafka.structs import TopicPartition

from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.append import CopyLimits
from tolerant_client.mirror.copy import LinkCopier, Progress
from tolerant_client.mirror.sync import prepare_link
from tolerant_client.raw import RawCluster

# Small fetches: a writer that is killed has always done a part only.
LIMITS = CopyLimits(max_bytes_in_flight=4 << 20, fetch_max_bytes=1 << 20, partition_max_bytes=256 << 10)


def main(source_servers: str, target_servers: str, topics: str, link: str) -> int:
    with RawCluster({"bootstrap_servers": source_servers}, name="source") as source:
        target = RawCluster({"bootstrap_servers": target_servers}, source.net, name="target")

        async def copy() -> dict[TopicPartition, Progress]:
            prepared = await prepare_link(source, target, topics, link)
            print("copying", flush=True)
            return await LinkCopier(source, target, prepared.producer_id, LIMITS).copy(prepared.ends)

        try:
            progress = source.run(copy)
        except TolerantClientError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        finally:
            target.close()
    print(f"done, {sum(p.troubles for p in progress.values())} troubles", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
