"""The mirror engine, without Spark: copies record batches so that every offset stays the same."""
