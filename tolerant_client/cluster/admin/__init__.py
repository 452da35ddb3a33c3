"""What a cluster tells and does, by Kafka's nouns."""
