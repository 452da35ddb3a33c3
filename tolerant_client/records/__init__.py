"""Bytes to records to Arrow and back, without I/O."""
