"""What follows the records: groups, configurations, ACLs, heartbeats, checkpoints."""
