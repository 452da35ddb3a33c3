"""What a link carries over besides records: groups, configurations, ACLs, heartbeats, checkpoints."""
