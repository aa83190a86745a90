"""Which tests run only where there is time for all of them."""

from __future__ import annotations

import os

import pytest

FULL = os.environ.get("WORKSPAN_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="a heavier fault: WORKSPAN_FULL=1 runs it")
