"""A service as a process of its own: `python -m support.mirror_service LINKS`, MirrorSettings as a JSON list, or a
MirrorMaker 2 file.

What happens is told on standard output, a JSON line for each event; of the reports, what is newly blocked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from kafka.structs import TopicPartition

from spark_integration.mirror.flow_links import run_flows
from spark_integration.mirror.supervisor import SupervisedLink, run_links
from tolerant_client.errors import TolerantClientError
from tolerant_client.ops.mm2.flows import read_flows
from tolerant_client.ops.service.link_events import LinkEvent
from tolerant_client.ops.service.mirror_settings import MirrorSettings
from tolerant_client.ops.service.restarts import RestartPolicy
from tolerant_client.ops.service.stop_signals import stop_signals

# Short waits: a test is not to sleep.
POLICY = RestartPolicy(first_s=0.5, longest_s=2, healthy_s=5, stalled_s=300, promoted_s=2)


def put(link: str, kind: str, text: str) -> None:
    """One write for a line: several threads tell what happens."""
    sys.stdout.write(json.dumps({"link": link, "kind": kind, "text": text}) + "\n")
    sys.stdout.flush()


blocked: dict[str, Mapping[TopicPartition, str]] = {}  # by link


def tell(event: LinkEvent) -> None:
    if event.kind != "report":
        put(event.link, event.kind, event.text)
        return
    known = blocked.get(event.link, {})
    for partition, why in event.facts.blocked.items():
        if partition not in known:
            put(event.link, "blocked", why)
    blocked[event.link] = event.facts.blocked


def main() -> None:
    stopping = stop_signals()
    try:
        if sys.argv[1].startswith("["):
            settings = [MirrorSettings(**{"goes_on": True, **fields}) for fields in json.loads(sys.argv[1])]
            run_links(
                [SupervisedLink(link) for link in settings], is_stopping=stopping.is_set, tell=tell, policy=POLICY
            )
        else:
            run_flows(read_flows(Path(sys.argv[1])), is_stopping=stopping.is_set, tell=tell, policy=POLICY)
    except TolerantClientError as error:
        put("", "died", str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
