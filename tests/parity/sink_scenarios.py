"""Writes, batch and streaming: what arrives, and how a write fails."""

from __future__ import annotations

from datetime import datetime, timezone

from parity.sinks import HEADERS, SinkScenario, expressions, rows
from parity.topics import CODECS

TOPIC = {"topic": "@a"}
KEYED = expressions(500, "cast(id * 7919 as string) as key", "concat('value ', id) as value")
TWO = rows("key string, value string", ("a", "1"), ("b", "2"))
COLUMN = {"topic": ""}
KEY_VALUE = "cast(id as string) as key", "cast(id as string) as value"

ROWS = (
    SinkScenario("values alone", expressions(50, "concat('value ', id) as value"), has_places=False),
    SinkScenario("binary values", rows("value binary", (b"\x00\xff",), (b"",)), has_places=False),
    SinkScenario("the partition of a key is Java's", KEYED),
    SinkScenario(
        "binary keys of every length",
        expressions(
            300,
            "substring(sha2(cast(id as string), 512), 0, id % 129) as key",
            "cast(cast(id as string) as binary) as value",
        ),
    ),
    SinkScenario(
        "unicode keys",
        rows("key string, value string", ("gr\u00f6\u00dfe", "\u4e2d"), ("\U0001f600", "x"), ("", "empty key")),
    ),
    SinkScenario(
        "keys some of which are null",
        rows("key string, value string", (None, "a"), ("k", "b"), (None, "c")),
        has_places=False,
    ),
    SinkScenario("values that are null", rows("key string, value string", ("a", None), ("b", "x"), ("a", None))),
    SinkScenario("a row of nulls", rows("key binary, value binary", (None, None)), has_places=False),
    SinkScenario(
        "headers of every kind, written",
        rows(
            f"key string, value string, headers {HEADERS}",
            ("a", "1", [("h", b"1"), ("h", b"2"), ("none", None), ("", b"x")]),
            ("b", "2", []),
            ("c", "3", None),
            ("d", "4", [("gr\u00f6\u00dfe", b"\xff")]),
        ),
    ),
    SinkScenario("headers without being asked for", rows(f"value string, headers {HEADERS}", ("1", [("h", b"1")])),
                 {"topic": "@a", "includeHeaders": "false"}, has_places=False),
    SinkScenario("a column of partitions", expressions(30, *KEY_VALUE, "cast(id % 3 as int) as partition")),
    SinkScenario(
        "partitions some of which are null",
        rows("key string, value string, partition int", ("a", "1", 2), ("a", "2", None), ("b", "3", 0)),
    ),
    SinkScenario("a column of topics", expressions(20, "if(id % 2 = 0, '@a', '@b') as topic", *KEY_VALUE), COLUMN),
    SinkScenario("the option goes before the column", expressions(5, "'@b' as topic", *KEY_VALUE), TOPIC),
    SinkScenario("spaces around the topic", TWO, {"topic": " @a "}),
    SinkScenario("the option goes before a column that is no topic", expressions(3, "id as topic", *KEY_VALUE), TOPIC),
    SinkScenario("other columns are left out", expressions(3, *KEY_VALUE, "id as offset", "array(1) as more")),
    SinkScenario(
        "a column of times is left out",
        rows("key string, value string, timestamp timestamp", ("a", "1", datetime(2020, 1, 1, tzinfo=timezone.utc))),
    ),
    SinkScenario(
        "columns in another order, written",
        expressions(5, "cast(1 as int) as partition", "cast(id as string) as value", "'k' as key"),
    ),
    SinkScenario("no rows", rows("key string, value string")),
    SinkScenario("a large record", expressions(2, "cast(id as string) as key", "repeat('x', 900000) as value")),
    *(
        SinkScenario(f"written in codec {codec}", KEYED, {"topic": "@a", "kafka.compression.type": codec})
        for codec in CODECS
    ),
    SinkScenario("small batches", KEYED, {"topic": "@a", "kafka.batch.size": "200", "kafka.linger.ms": "0"}),
    SinkScenario("acks of the leader alone", KEYED, {"topic": "@a", "kafka.acks": "1"}),
    SinkScenario("a plain producer", KEYED, {"topic": "@a", "kafka.enable.idempotence": "false"}),
    SinkScenario("one request at a time", KEYED, {"topic": "@a", "kafka.max.in.flight.requests.per.connection": "1"}),
    SinkScenario("an option of writing that nobody knows", TWO, {"topic": "@a", "somethingElse": "1"}),
    SinkScenario("options of reading", TWO, {"topic": "@a", "subscribe": "steps", "startingOffsets": "earliest"}),
    SinkScenario("names of options of writing in capitals", TWO, {"TOPIC": "@a", "KAFKA.ACKS": "all"}),
)  # fmt: skip

STREAMS = (
    # One of two tasks has rows: the order of what two write is anybody's.
    SinkScenario(
        "a stream by option",
        lambda steps: steps.where("partition = 0").select("key", "value"),
        is_stream=True,
    ),
    SinkScenario(
        "a stream by column",
        lambda steps: steps.selectExpr("if(partition = 0, '@a', '@b') as topic", "key", "value", "1 as partition"),
        COLUMN,
        is_stream=True,
        has_places=False,
    ),
    SinkScenario(
        "a stream with headers",
        lambda steps: steps.selectExpr("key", "value", "array(named_struct('key', 'h', 'value', value)) as headers"),
        is_stream=True,
        has_places=False,
    ),
    SinkScenario(
        "updates of counts",
        lambda steps: steps.groupBy("key").count().selectExpr("key", "cast(count as string) as value"),
        is_stream=True,
        output_mode="update",
        has_places=False,
    ),
    SinkScenario(
        "complete counts",
        lambda steps: steps.groupBy("key").count().selectExpr("key", "cast(count as string) as value"),
        is_stream=True,
        output_mode="complete",
        has_places=False,
    ),
    SinkScenario(
        "a stream without a topic",
        lambda steps: steps.select("key", "value"),
        COLUMN,
        is_stream=True,
        fails="topic",
    ),
    SinkScenario("a stream without values", lambda steps: steps.select("key"), is_stream=True, fails="value"),
    SinkScenario(
        "a stream of null topics",
        lambda steps: steps.selectExpr("cast(null as string) as topic", "value"),
        COLUMN,
        is_stream=True,
        fails="topic",
    ),
)  # fmt: skip

ERRORS = (
    SinkScenario("no topic", TWO, COLUMN, fails="topic"),
    SinkScenario("no values", rows("key string", ("a",)), fails="value"),
    SinkScenario("a column of values in capitals", rows("VALUE string", ("a",)), fails="value"),
    SinkScenario("topics that are numbers", rows("topic int, value string", (1, "a")), COLUMN, fails="topic"),
    SinkScenario("keys that are numbers", rows("key int, value string", (1, "a")), fails="key"),
    SinkScenario("values that are numbers", rows("value bigint", (1,)), fails="value"),
    SinkScenario("values that are structs", rows("value struct<a: int>", ((1,),)), fails="value"),
    SinkScenario(
        "headers that are a map",
        rows("value string, headers map<string, binary>", ("a", {})),
        fails="headers",
    ),
    SinkScenario(
        "headers with values of text",
        rows("value string, headers array<struct<key: string, value: string>>", ("a", [("h", "x")])),
        fails="headers",
    ),
    SinkScenario("partitions that are text", rows("value string, partition string", ("a", "0")), fails="partition"),
    SinkScenario("partitions that are long", rows("value string, partition bigint", ("a", 0)), fails="partition"),
    SinkScenario(
        "a topic that is null",
        rows("topic string, value string", ("@a", "1"), (None, "2")),
        COLUMN,
        fails="topic",
    ),
    SinkScenario(
        "a partition that is not there",
        rows("key string, value string, partition int", ("a", "1", 7)),
        fails="partition",
    ),
    SinkScenario(
        "a negative partition",
        rows("key string, value string, partition int", ("a", "1", -1)),
        fails="partition",
    ),
    SinkScenario(
        "a header without a key",
        rows(f"value string, headers {HEADERS}", ("a", [(None, b"x")])),
        fails="header",
    ),
    SinkScenario(
        "a name that no topic can have, written",
        rows("value string", ("a",)),
        {"topic": "gr\u00f6\u00dfe"},
        fails="gr\u00f6\u00dfe",
    ),
    SinkScenario(
        "no servers, written",
        TWO,
        {"topic": "@a", "kafka.bootstrap.servers": ""},
        fails="kafka.bootstrap.servers",
    ),
    SinkScenario(
        "key serializers are not for users",
        TWO,
        {"topic": "@a", "kafka.key.serializer": "x.Y"},
        fails="key.serializer",
    ),
    SinkScenario(
        "value serializers are not for users",
        TWO,
        {"topic": "@a", "kafka.value.serializer": "x.Y"},
        fails="value.serializer",
    ),
    SinkScenario("acks that are none", TWO, {"topic": "@a", "kafka.acks": "some"}, fails="acks"),
    SinkScenario(
        "a codec that is none",
        TWO,
        {"topic": "@a", "kafka.compression.type": "rar"},
        fails="compression.type",
    ),
    SinkScenario(
        "idempotence without acks",
        TWO,
        {"topic": "@a", "kafka.enable.idempotence": "true", "kafka.acks": "0"},
        fails="idempotence",
    ),
    SinkScenario(
        "a record larger than max.request.size",
        expressions(1, "repeat('x', 5000) as value"),
        {"topic": "@a", "kafka.max.request.size": "2000"},
        fails="max.request.size",
    ),
    SinkScenario(
        "a record larger than the topic takes",
        expressions(1, "repeat('x', 2000000) as value"),
        {"topic": "@a", "kafka.max.request.size": "9000000"},
        fails="@a",
    ),
    SinkScenario("save mode overwrite", TWO, mode="overwrite", fails="Overwrite"),
    SinkScenario("save mode ignore", TWO, mode="ignore", fails="gnore"),
    SinkScenario("save mode errorifexists", TWO, mode="errorifexists"),
    SinkScenario("no save mode", TWO, mode=None),
)  # fmt: skip

CORE = ROWS[::3]
TABLE = (*ROWS, *STREAMS, *ERRORS)
