"""Records wherever the target's log ends, in transactions, with an exact map of offsets."""
