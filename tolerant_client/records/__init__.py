"""Bytes to records to Arrow, and back: pure."""
