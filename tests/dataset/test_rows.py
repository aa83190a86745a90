"""Rows become columns whatever names and kinds they have, also where all of them look alike."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.dataset.blocks import rows_of, table_of_rows

ROWS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_a_name_that_a_row_lacks_is_null_in_it(rows: list[dict[str, Any]]) -> None:
    """Columns come in the order in which names are first seen; what is not there is null (M33, KF-03)."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = table_of_rows(rows, "here")
    assert table.column_names == names
    assert rows_of(table) == [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, lambda row: defaultdict(int, row)])
def test_rows_of_every_kind_of_mapping_become_columns(kind: Any) -> None:
    """As many names, but others: also where a mapping would make up what it lacks (M54)."""
    rows = [kind({"a": 1, "b": 2}), kind({"a": 3, "c": 4})]
    assert table_of_rows(rows, "here").to_pydict() == {"a": [1, 3], "b": [2, None], "c": [None, 4]}
    assert [dict(row) for row in rows] == [{"a": 1, "b": 2}, {"a": 3, "c": 4}]
