"""A FaultProxy in a process of its own, so that neither its CPU time nor its interpreter lock is the client's.

    python tests/bench/proxy_process.py LISTEN_PORT BROKER_PORT

Each line read is a list of faults as JSON, [name, arguments] each, which replaces those before; each line printed
says as JSON what was done since the line before: {"port": ..., "answers": {...}, "injected": {...}}.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter

warnings.filterwarnings("ignore", message="(read|open)_text is deprecated")

from tolerant_client.testing import faults  # noqa: E402
from tolerant_client.testing.proxy import FaultProxy  # noqa: E402


def main(listen_port: str, broker_port: str) -> None:
    seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    with FaultProxy({int(listen_port): ("127.0.0.1", int(broker_port))}) as proxy:
        for line in sys.stdin:
            proxy.faults = [getattr(faults, name)(**arguments) for name, arguments in json.loads(line)]
            now = (proxy.responses, proxy.injected)
            answers, injected = (after - before for after, before in zip(now, seen))
            seen = now
            port = int(proxy.bootstrap_servers.rpartition(":")[2])
            print(json.dumps({"port": port, "answers": answers, "injected": injected}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
