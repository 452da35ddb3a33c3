"""One writer of a link as a process of its own, to be raced and killed: source target topics link [options].

`topics` are a regular expression, or JSON of LinkTopics.

Prints "copying" once the link is prepared and "done" at the end; an error goes
to stderr and gives exit code 1.

`options` are JSON: gap_fill (as MirrorPolicy.parse takes it), append_lease_ms, patience_ms, produce_max_bytes, and
rounds of hold_ms and lease_ms with pauses between them, as Spark's micro-batches are: up to the ends that the source has
then, until the process is killed.  Each round prints its numbers as JSON.  Processes with the same `run` are one mirror's;
with `tasks` each copies a part only, another one every few rounds, as Spark's workers do.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from kafka.structs import TopicPartition
from raising_copier import LinkCopier

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.state.topic_filter import LinkTopics

_READ_COMMITTED = 1
_SAME_PART_S = 4.0


def limits(options: dict[str, Any]) -> CopyLimits:
    """Small fetches: a writer that is killed has always done a part only."""
    own = {name: options[name] for name in ("append_lease_ms", "patience_ms", "produce_max_bytes") if name in options}
    return CopyLimits(max_bytes_in_flight=4 << 20, fetch_max_bytes=1 << 20, partition_max_bytes=256 << 10, **own)


def main(source_servers: str, target_servers: str, topics: str, link: str, given: str = "{}") -> int:
    options = json.loads(given)
    chosen = LinkTopics.from_json(topics) if topics.startswith("{") else LinkTopics.of(topics)
    with Cluster({"bootstrap_servers": source_servers}, name="source", names=chosen.names) as source:
        target = Cluster({"bootstrap_servers": target_servers}, source.net, name="target")

        async def copy() -> dict[TopicPartition, Progress]:
            policy = MirrorPolicy.parse(gap_fill=options.get("gap_fill", []))
            prepared = await prepare_link(source, target, chosen, link, policy)
            copier = LinkCopier(
                source,
                target,
                identical_offsets(prepared.producer_id),
                limits(options),
                link=link,
                policy=policy,
                run=options.get("run", ""),
            )
            print("copying", flush=True)
            while "hold_ms" in options:
                ends = await source.list_offsets(dict.fromkeys(prepared.ends, LATEST), isolation_level=_READ_COMMITTED)
                if (tasks := options.get("tasks", 1)) > 1:
                    part = int(time.time() / _SAME_PART_S + os.getpid()) % tasks
                    ends = {p: end for n, (p, end) in enumerate(sorted(ends.items())) if n % tasks == part}
                done = await copier.copy(ends, hold_ms=options["hold_ms"], lease_ms=options["lease_ms"])
                print(json.dumps(numbers(done)), flush=True)
                await source.net.sleep(random.uniform(0, 2 * options["lease_ms"] / 1000))
            return await copier.copy(prepared.ends)

        try:
            progress = source.run(copy)
        except TolerantClientError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        finally:
            target.close()
    print(json.dumps(numbers(progress)), flush=True)
    print(f"done, {sum(p.troubles for p in progress.values())} troubles", flush=True)
    return 0


def numbers(progress: dict[TopicPartition, Progress]) -> dict[str, int]:
    return {
        name: sum(getattr(p, name) for p in progress.values())
        for name in ("records", "bytes", "troubles", "filled", "losses")
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
