"""Regions, blocks and their arithmetic."""

from workspan.grid.block import Block, BlockStatus, as_roi, box_roi
from workspan.grid.layout import Layout, pyramid_cell, pyramid_number

__all__ = ["Block", "BlockStatus", "Layout", "as_roi", "box_roi", "pyramid_cell", "pyramid_number"]
