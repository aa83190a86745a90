"""A Qt progress bar that is driven by log records alone.

    python examples/progress_qt.py

The bar moves with the step that is timed in another thread, runs to and fro where nobody can say how long it takes, and
is reset when it fails. It needs PySide6 or another binding of the same names.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

from workspan import WallClockTime


class SignalHandler(logging.Handler):
    """Pass what a record tells to a callable: a signal's ``emit``, so that the window's own thread draws."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Tell event, label, fraction (-1: unknown) and seconds left (-1: unknown) of an outermost step."""
        state = getattr(record, "workspan", None)
        if isinstance(state, dict) and not state.get("depth"):
            fraction, left = state.get("fraction"), getattr(record, "dt_rem", None)
            self.tell(
                str(state.get("event")),
                str(state.get("label")),
                -1.0 if fraction is None else float(fraction),
                -1.0 if left is None else float(left),
            )


def show(bar: Any, event: str, label: str, fraction: float, left: float) -> None:
    """Set a ``QProgressBar``."""
    if event == "failed":
        bar.setRange(0, 1000)
        bar.reset()
        bar.setFormat(f"{label}: failed")
        return
    bar.setRange(0, 1000 if fraction >= 0 else 0)  # 0 to 0 is Qt's bar without an end
    if fraction >= 0:
        bar.setValue(int(fraction * 1000))
    bar.setFormat(label if left < 0 else f"{label}: {left:.0f} s left")


@WallClockTime(N_ref=lambda seconds: seconds, order="O_N", enable_logging=True)
def work(seconds: float) -> None:
    """Take some time."""
    time.sleep(seconds)


def main() -> int:
    """Show a window with a bar while the work is done three times and more."""
    from PySide6.QtCore import QObject, Signal
    from PySide6.QtWidgets import QApplication, QProgressBar

    class Bridge(QObject):
        told = Signal(str, str, float, float)

    application = QApplication(sys.argv)
    bar = QProgressBar()
    bridge = Bridge()
    bridge.told.connect(lambda *news: show(bar, *news))
    logger = logging.getLogger("workspan.progress")
    logger.setLevel(logging.INFO)
    logger.addHandler(SignalHandler(bridge.told.emit))
    bar.show()
    threading.Thread(target=lambda: [work(s) for s in (1.0, 2.0, 3.0, 4.0, 5.0)], daemon=True).start()
    return int(application.exec())


if __name__ == "__main__":
    from workspan import configure

    configure(logging={"interval": 0.1})
    sys.exit(main())
