"""``python -m workspan`` is the command ``workspan``."""

from __future__ import annotations

from workspan.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
