"""A notebook's progress bar that is driven by log records alone.

In a cell::

    from progress_jupyter import show_progress
    show_progress()

From then on each logged step shows a bar. It needs ipywidgets.
"""

from __future__ import annotations

import logging
from typing import Any


class WidgetHandler(logging.Handler):
    """Set a ``FloatProgress`` from the extras of records.

    Parameters
    ----------
    bar, text
        Widgets with ``value``, ``bar_style`` and ``description``.
    """

    def __init__(self, bar: Any, text: Any) -> None:
        super().__init__()
        self.bar = bar
        self.text = text

    def emit(self, record: logging.LogRecord) -> None:
        """Show an outermost step."""
        state = getattr(record, "workspan", None)
        if not isinstance(state, dict) or state.get("depth"):
            return
        event, fraction = state.get("event"), state.get("fraction")
        left = getattr(record, "dt_rem", None)
        self.bar.bar_style = {"complete": "success", "failed": "danger", "overdue": "warning"}.get(str(event), "info")
        if event == "failed":
            self.bar.value = 0.0
        elif fraction is not None:
            self.bar.value = fraction
        self.text.value = record.getMessage() if left is None else f"{state.get('label')}: {left:.0f} s left"


def show_progress(interval: float = 1.0) -> WidgetHandler:
    """Display a bar below this cell and keep it up to date."""
    from IPython.display import display
    from ipywidgets import FloatProgress, HBox, Label

    from workspan import configure

    configure(logging={"interval": interval})
    handler = WidgetHandler(FloatProgress(min=0.0, max=1.0), Label())
    display(HBox([handler.bar, handler.text]))
    logger = logging.getLogger("workspan.progress")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return handler
