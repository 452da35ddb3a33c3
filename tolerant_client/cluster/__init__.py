"""One Kafka cluster, as coroutines."""
