"""One run of a micro-batch without Spark, as a process of its own that may kill itself.

    python -m support.sink_batch SERVERS TOPIC QUERY RUN BATCH TASKS DEATH

The rows of micro-batch BATCH, ROWS numbers, are dealt to TASKS tasks, which write them with exactlyOnce as sink QUERY;
then comes what Spark's driver does.  DEATH is where kill -9 meets it: `tasks` (all have written), `begun` (the decision
is ready and not committed), `decided` (and nothing ended), `ended` (one transaction is), or `never`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pyarrow as pa

from spark_integration.writing.columns import WriteColumns
from spark_integration.writing.exactly_once import SinkBatch
from spark_integration.writing.options import parse_write_options
from spark_integration.writing.settlement import WrittenTask, commit_tasks
from spark_integration.writing.writer import write_task
from tolerant_client.cluster.producer.transaction import ProducerTransaction

ROWS = 60
DEATHS = ("tasks", "begun", "decided", "ended")


def rows(batch: int) -> list[bytes]:
    return [b"%d" % number for number in range(batch * ROWS, (batch + 1) * ROWS)]


def write(servers: str, topic: str, place: SinkBatch, tasks: int, **more: str) -> list[WrittenTask]:
    """What the tasks of one attempt tell the driver."""
    options = parse_write_options({"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true", **more})
    columns = WriteColumns(topic, None, 0, None, None)
    shares = [rows(place.batch)[number::tasks] for number in range(tasks)]
    return [
        write_task(options, columns, place, iter([pa.record_batch([pa.array(share, pa.binary())], names=["value"])]))
        for share in shares
    ]


def commit(servers: str, topic: str, messages: list[Any], **more: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true", **more}
    commit_tasks(parse_write_options(given), messages)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(death: str) -> None:
    """Has the driver killed where `death` says."""
    commit_one, ends = ProducerTransaction.commit, []

    async def commit(transaction: ProducerTransaction, *arguments: Any) -> None:
        is_decider = transaction.transactional_id.endswith("/decider")
        if is_decider and death == "begun":
            die()
        if not is_decider:
            if death == "decided":
                die()
            ends.append(transaction)
            if death == "ended" and len(ends) > 1:
                return  # still on its way when the first one has arrived
        await commit_one(transaction, *arguments)
        if not is_decider and death == "ended":
            die()

    ProducerTransaction.commit = commit  # type: ignore[method-assign]  # this process is for it


def main(servers: str, topic: str, query: str, run: str, batch: int, tasks: int, death: str) -> None:
    place = SinkBatch(query, query, run, batch)
    messages = write(servers, topic, place, tasks)
    if death == "tasks":
        die()
    if death != "never":
        die_at(death)
    commit(servers, topic, messages)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]), sys.argv[7])
