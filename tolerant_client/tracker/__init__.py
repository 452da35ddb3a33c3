"""Requests in flight on one connection: pure."""
