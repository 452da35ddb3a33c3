"""Lets pyspark find format("tolerantkafka") by itself.

pyspark imports every top-level module named `pyspark_*` and registers its
DefaultSource (pyspark/sql/worker/lookup_data_sources.py).
"""

from spark_integration.source import TolerantKafkaDataSource


class DefaultSource(TolerantKafkaDataSource):
    """The data source under the name that pyspark looks for."""
