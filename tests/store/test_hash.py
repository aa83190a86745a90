"""The hash that ties a store to a layout."""

from __future__ import annotations

import pytest
from hypothesis import given

from helpers.layouts import layouts
from workspan.errors import ConfigurationError
from workspan.grid import Layout
from workspan.store.hash import layout_hash


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            Layout((0,), (100,), (0,), (10,), (0,), (10,), "valid"),
            "6033dfedeecc35bd62cd587a081cd54dd33aa651a0878db8451112015099f507",
        ),
        (
            Layout((-3, 5), (41, 37), (0, 0), (14, 12), (2, 1), (10, 10), "shrink"),
            "7b0ca2b81794209c85f67e3f94a76edc581170fa7d73e0035dc63b6c407c2b03",
        ),
    ],
)
def test_known_layouts_have_their_hash(layout: Layout, expected: str) -> None:
    """The two vectors of the specification hold (B114)."""
    assert layout_hash(layout) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"total_begin": (1,)},
        {"total_shape": (101,)},
        {"read_begin": (-1,), "read_shape": (12,)},
        {"read_shape": (11,)},
        {"write_begin": (1,), "read_shape": (11,)},
        {"write_shape": (9,)},
        {"fit": "overhang"},
    ],
)
def test_every_field_of_a_layout_enters(make_layout, change: dict[str, object]) -> None:
    """A change of any ROI or of the fit changes the hash (B114, R29)."""
    assert layout_hash(make_layout(**change)) != layout_hash(make_layout())


@given(layouts())
def test_the_conflict_flag_does_not_enter(layout: Layout) -> None:
    """Whether neighbours may run together changes nothing about what a cell means (B114)."""
    other = Layout(
        layout.total_begin,
        layout.total_shape,
        layout.read_begin,
        layout.read_shape,
        layout.write_begin,
        layout.write_shape,
        layout.fit,
        not layout.read_write_conflict,
    )
    assert layout_hash(layout) == layout_hash(other)


def test_coordinates_beyond_64_bits_are_refused(make_layout) -> None:
    """The hash is defined on 64-bit integers; the error names the coordinates (B114)."""
    with pytest.raises(ConfigurationError, match=r"\(9223372036854775808,\), which do not fit in 64 bits"):
        layout_hash(make_layout(total_begin=(2**63,)))
