"""Batch reads that fail: the kind of the error, and what our message names."""

from __future__ import annotations

from parity.batch_scenarios import BOTH_STEPS, at, offsets, times
from parity.query_scenarios import COLUMNS
from parity.scenario import Scenario
from parity.topics import STEPS


def fails(name: str, says: str, **options: str) -> Scenario:
    """A read of `steps` unless told otherwise; a double underscore in an option's name is a dot."""
    chosen = {key.replace("__", "."): value for key, value in options.items()}
    selects = any(key.lower() in ("assign", "subscribe", "subscribepattern") for key in chosen)
    return Scenario(name, chosen if selects else {**BOTH_STEPS, **chosen}, fails=says)


SELECTION = (
    Scenario("nothing is selected", {}, fails="subscribe"),
    Scenario("no servers", BOTH_STEPS, fails="kafka.bootstrap.servers", without_servers=True),
    fails("two selections", "subscribe", subscribe="steps", assign='{"steps":[0]}'),
    fails("two other selections", "subscribePattern", subscribe="steps", subscribePattern="steps"),
    fails("three selections", "assign", subscribe="steps", subscribePattern="steps", assign='{"steps":[0]}'),
    fails("an empty subscribe", "subscribe", subscribe=""),
    fails("a subscribe of commas", "subscribe", subscribe=" , ,"),
    fails("an empty pattern", "subscribePattern", subscribePattern=""),
    fails("a pattern of spaces", "subscribePattern", subscribePattern="  "),
    fails("a pattern that is none", "subscribePattern", subscribePattern="steps("),
    fails("an empty assign", "assign", assign=""),
    fails("an assign that is no JSON", "assign", assign='{"steps":'),
    fails("an assign that is a list", "assign", assign='["steps"]'),
    fails("an assign with a partition that is no number", "assign", assign='{"steps":["x"]}'),
    fails("an assign with offsets", "assign", assign='{"steps":{"0":1}}'),
    fails("an assigned topic that does not exist", "nowhere", assign='{"nowhere":[0]}'),
    fails("an assigned partition that does not exist", "steps", assign='{"steps":[0,7]}'),
    fails("a topic that does not exist", "nowhere", subscribe="nowhere"),
    fails("one topic of two that does not exist", "nowhere", subscribe="steps,nowhere"),
    fails("a name that no topic can have", "gr\u00f6\u00dfe", subscribe="gr\u00f6\u00dfe"),
)

OFFSETS = (
    fails("a batch that starts at latest", "startingOffsets", startingOffsets="latest"),
    fails("a batch that starts at Latest", "startingOffsets", startingOffsets="Latest"),
    fails("a partition that starts at latest", "startingOffsets", startingOffsets=offsets("steps", 0, -1)),
    fails("a batch that ends at earliest", "endingOffsets", endingOffsets="earliest"),
    fails("a partition that ends at earliest", "endingOffsets", endingOffsets=offsets("steps", 5, -2)),
    fails("offsets that are a word", "startingOffsets", startingOffsets="middle"),
    fails("ending offsets that are a word", "endingOffsets", endingOffsets="middle"),
    fails("empty offsets", "startingOffsets", startingOffsets=""),
    fails("offsets that are no JSON", "startingOffsets", startingOffsets='{"steps":{"0":1'),
    fails("ending offsets that are no JSON", "endingOffsets", endingOffsets="{steps}"),
    fails("offsets that are a list", "startingOffsets", startingOffsets='["steps"]'),
    fails("offsets of a partition that is no number", "startingOffsets", startingOffsets='{"steps":{"x":1}}'),
    fails("an offset that is no number", "startingOffsets", startingOffsets='{"steps":{"0":"x","1":1}}'),
    fails("offsets as those of assign", "startingOffsets", startingOffsets='{"steps":[0,1]}'),
    fails("a start without one of the partitions", "startingOffsets", startingOffsets='{"steps":{"0":1}}'),
    fails("a start with a partition too many", "startingOffsets", startingOffsets=offsets("steps", 1, 1, 1)),
    fails(
        "a start with a topic too many",
        "startingOffsets",
        startingOffsets='{"steps":{"0":1,"1":1},"others":{"0":1}}',
    ),
    fails("an end without one of the partitions", "endingOffsets", endingOffsets='{"steps":{"0":1}}'),
    fails("an end with a partition too many", "endingOffsets", endingOffsets=offsets("steps", 1, 1, 1)),
    fails("an end with another topic", "endingOffsets", endingOffsets='{"others":{"0":1}}'),
    fails(
        "a start and an end of different partitions",
        "startingOffsets",
        startingOffsets=offsets("steps", 0, 0),
        endingOffsets='{"steps":{"0":1}}',
    ),
    fails(
        "a start beyond its end",
        "startingOffsets",
        startingOffsets=offsets("steps", 9, 0),
        endingOffsets=offsets("steps", 5, 5),
    ),
    fails(
        "a start beyond its end without failing",
        "startingOffsets",
        startingOffsets=offsets("steps", 9, 0),
        endingOffsets=offsets("steps", 5, 5),
        failOnDataLoss="false",
    ),
    fails("a start beyond the log", "startingOffsets", startingOffsets=offsets("steps", STEPS + 40, 0)),
    fails(
        "an end beyond the log",
        "endingOffsets",
        endingOffsets=offsets("steps", STEPS + 40, 5),
        kafkaConsumer__pollTimeoutMs="2000",
    ),
    fails(
        "a start that is gone",
        "startingOffsets",
        subscribe="shortened",
        startingOffsets=offsets("shortened", 3, 50, 0),
    ),
    fails("an offset below -2", "startingOffsets", startingOffsets=offsets("steps", -3, 0)),
    fails("an ending offset below -2", "endingOffsets", endingOffsets=offsets("steps", -3, 5)),
)  # fmt: skip

TIMES = (
    fails("a time that is none", "startingTimestamp", startingTimestamp="yesterday"),
    fails("a time with a fraction", "startingTimestamp", startingTimestamp="1.5"),
    fails("an empty time", "startingTimestamp", startingTimestamp=""),
    fails("a negative time", "startingTimestamp", startingTimestamp="-5"),
    fails("an ending time that is none", "endingTimestamp", endingTimestamp="x"),
    fails("no record that young", "startingTimestamp", startingTimestamp=at(9_999)),
    fails(
        "no record that young by name",
        "startingTimestamp",
        startingTimestamp=at(9_999),
        startingOffsetsByTimestampStrategy="error",
    ),
    fails(
        "no record that young in one partition",
        "startingOffsetsByTimestamp",
        startingOffsetsByTimestamp=times("steps", 1, 9_999),
    ),
    fails("no record at all and a time", "startingTimestamp", subscribe="empty", startingTimestamp=at(0)),
    fails(
        "a strategy that is none",
        "startingOffsetsByTimestampStrategy",
        startingTimestamp=at(0),
        startingOffsetsByTimestampStrategy="earliest",
    ),
    fails("times that are no JSON", "startingOffsetsByTimestamp", startingOffsetsByTimestamp="{"),
    fails("ending times that are no JSON", "endingOffsetsByTimestamp", endingOffsetsByTimestamp="steps"),
    fails(
        "times without one of the partitions",
        "startingOffsetsByTimestamp",
        startingOffsetsByTimestamp='{"steps":{"0":1}}',
    ),
    fails(
        "ending times with a partition too many",
        "endingOffsetsByTimestamp",
        endingOffsetsByTimestamp=times("steps", 1, 1, 1),
    ),
    fails("a starting time after the ending one by partition", "startingOffsetsByTimestamp",
          startingOffsetsByTimestamp=times("steps", 9, 9), endingOffsetsByTimestamp=times("steps", 5, 10)),
    fails(
        "a starting time after the ending one",
        "startingTimestamp",
        startingTimestamp=at(30),
        endingTimestamp=at(20),
    ),
    fails(
        "a starting time after the ending offset",
        "startingTimestamp",
        startingTimestamp=at(30),
        endingOffsets=offsets("steps", 10, 40),
    ),
)  # fmt: skip

VALUES = (
    *(
        fails(f"minPartitions {value or 'empty'}", "minPartitions", minPartitions=value)
        for value in ("0", "-1", "many", "1.5", "")
    ),
    *(
        fails(f"maxRecordsPerPartition {value}", "maxRecordsPerPartition", maxRecordsPerPartition=value)
        for value in ("0", "-1", "many")
    ),
    fails("failOnDataLoss that is neither", "failOnDataLoss", failOnDataLoss="yes"),
    fails("includeHeaders that is neither", "includeHeaders", includeHeaders="maybe"),
    fails("a poll timeout that is no number", "kafkaConsumer.pollTimeoutMs", kafkaConsumer__pollTimeoutMs="soon"),
    fails("retries that are no number", "fetchOffset.numRetries", fetchOffset__numRetries="few"),
    fails(
        "an interval of retries that is no number",
        "fetchOffset.retryIntervalMs",
        fetchOffset__retryIntervalMs="long",
    ),
    fails(
        "minOffsetsPerTrigger above maxOffsetsPerTrigger",
        "maxOffsetsPerTrigger",
        minOffsetsPerTrigger="9",
        maxOffsetsPerTrigger="5",
    ),
    fails("an isolation level that is none", "isolation.level", kafka__isolation__level="read_some"),
    Scenario("a schema of the user's", BOTH_STEPS, schema="key string, value string", fails="key"),
    Scenario("a schema with a column too many", BOTH_STEPS, schema=f"{COLUMNS}, more string", fails="more"),
    Scenario("a schema of some of the columns", BOTH_STEPS, schema="key binary, value binary", fails="schema"),
)

FORBIDDEN = tuple(
    fails(f"kafka.{name} is not for users", name, **{f"kafka.{name}": value})
    for name, value in (
        ("auto.offset.reset", "earliest"),
        ("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
        ("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
        ("enable.auto.commit", "true"),
        ("interceptor.classes", "some.Interceptor"),
    )
) + (
    fails(
        "kafka.AUTO.OFFSET.RESET is not for users either",
        "auto.offset.reset",
        **{"KAFKA.Auto.Offset.Reset": "latest"},
    ),
    fails(
        "enable.auto.commit is not even for those who want none",
        "enable.auto.commit",
        **{"kafka.enable.auto.commit": "false"},
    ),
)

CLIENTS = (
    fails("a client's number that is none", "max.poll.records", **{"kafka.max.poll.records": "many"}),
    fails("a client's size that is none", "fetch.max.bytes", **{"kafka.fetch.max.bytes": "all"}),
    fails("a security protocol that is none", "security.protocol", **{"kafka.security.protocol": "TRUST_ME"}),
    fails(
        "a mechanism without its configuration",
        "sasl",
        **{"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"},
    ),
    fails("servers without a port", "kafka.bootstrap.servers", **{"kafka.bootstrap.servers": "localhost"}),
    fails(
        "a truststore that is not there",
        "truststore",
        **{"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere/trust.jks"},
    ),
)

CORE = (*OFFSETS, *VALUES, *FORBIDDEN)
TABLE = (*SELECTION, *OFFSETS, *TIMES, *VALUES, *FORBIDDEN, *CLIENTS)
