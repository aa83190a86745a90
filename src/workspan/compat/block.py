"""daisy's module of blocks."""

from workspan.grid import Block, BlockStatus

__all__ = ["Block", "BlockStatus"]
