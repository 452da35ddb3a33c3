"""Running links, without Spark."""
