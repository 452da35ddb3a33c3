"""Whole batches, exactly once."""
