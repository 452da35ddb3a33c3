"""What the coroutines of a Cluster run on and wait with: kafka-python's selector, its futures and its wakeup notifier."""

from __future__ import annotations

from tolerant_client.stock.stock_names import Future as Future
from tolerant_client.stock.stock_names import NetworkSelector as NetworkSelector
from tolerant_client.stock.stock_names import WakeupNotifier as WakeupNotifier
