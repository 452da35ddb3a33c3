"""The mirror as a Spark job: ranges that executors copy, and what an operator sees of it."""
