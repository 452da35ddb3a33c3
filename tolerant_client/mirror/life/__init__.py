"""What a running link does beside copying records: one round of each duty, repeatable, and its control."""
