"""From options to rows: the implementation of spark.read and spark.readStream."""
