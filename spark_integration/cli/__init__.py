"""One module for each command of tolerant-kafka."""
