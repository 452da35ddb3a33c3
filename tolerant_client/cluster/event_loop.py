"""What the coroutines of a Cluster run on, and wait with: kafka-python's selector, its futures, and what wakes a waiter."""

from __future__ import annotations

from tolerant_client.stock.stock_names import Future, NetworkSelector, WakeupNotifier

__all__ = ["Future", "NetworkSelector", "WakeupNotifier"]
