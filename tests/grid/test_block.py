"""One block."""

from __future__ import annotations

import pickle

import pytest
from funlib.geometry import Roi

from workspan.errors import ConfigurationError
from workspan.grid import Block, BlockStatus, Layout

SQUARE = Layout((0, 0), (6, 6), (0, 0), (3, 3), (1, 1), (1, 1))


def test_a_block_made_by_hand_equals_the_one_of_the_layout():
    """B9, B10, B13: id from the ROIs; equality and hash by id alone."""
    lazy = Block.at(SQUARE, 5, "t")
    made = Block(Roi((0, 0), (6, 6)), Roi((1, 1), (3, 3)), Roi((2, 2), (1, 1)), task_id="t")
    made.status = BlockStatus.FAILED
    assert lazy == made
    assert hash(lazy) == hash(made)
    assert (lazy.block_id, lazy.read_roi, lazy.write_roi) == (("t", 12), made.read_roi, made.write_roi)
    assert lazy != Block.at(SQUARE, 6, "t")
    assert lazy != Block.at(SQUARE, 5, "u")


@pytest.mark.parametrize("kwargs", [{"task_id": "t", "block_id": 7}, {"block_id": ("t", 7)}])
def test_ids_given_by_keyword(kwargs):
    """B13: block_id and task_id work by keyword, as a number or as the whole tuple."""
    roi = Roi((0,), (4,))
    assert Block(roi, roi, roi, **kwargs).block_id == ("t", 7)


def test_pickling_keeps_rois_id_and_status():
    """B13: statistics stay behind."""
    block = Block.at(SQUARE, 3, "t")
    block.status = BlockStatus.PROCESSING
    again = pickle.loads(pickle.dumps(block))
    assert (again, again.status, again.read_roi, again.stats) == (block, BlockStatus.PROCESSING, block.read_roi, None)


def test_status_is_an_int_and_an_enum():
    """B14: both spellings compare; anything else is refused with the value."""
    block = Block.at(SQUARE, 0, "t")
    block.status = 3
    assert block.status is BlockStatus.FAILED
    assert block.status == 3
    with pytest.raises(ConfigurationError, match=r"block.status = 4 is not a status"):
        block.status = 4
    with pytest.raises(ValueError, match="'done'"):
        block.status = "done"


def test_any_region_like_object_is_accepted():
    """B1: integer offset (or begin) and shape are enough; anything else is named."""

    class Region:
        begin, shape = (0,), (4,)

    assert Block(Region(), Region(), Region()).read_roi == Roi((0,), (4,))
    with pytest.raises(ConfigurationError, match=r"read_roi=5 is not a region"):
        Block(Region(), 5, Region())
