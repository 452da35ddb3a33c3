"""What is for `tox run -e long` alone: tests marked `long`, and the larger sizes of others.  TOLERANT_LONG=1 says so."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("TOLERANT_LONG"))
