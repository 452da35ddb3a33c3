"""What life/promotion.py imports; it goes when that module names control_topic.py and link_control.py itself."""

from __future__ import annotations

from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl, link_options

__all__ = ["LinkControl", "link_options", "read_control", "update_control"]
