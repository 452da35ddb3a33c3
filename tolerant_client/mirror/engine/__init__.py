"""Copies the partitions of a link."""
