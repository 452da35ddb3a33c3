"""Compares what a read_committed consumer sees on both clusters."""
