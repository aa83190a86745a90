"""What tests read off sections."""

from __future__ import annotations


def self_ns(collected) -> dict[str, int]:
    """Section name -> self time, as the exact integers of the tree."""
    found: dict[str, int] = {}
    for root in (collected.root, *collected.beside):
        for node in root.walk():
            if node.calls:
                found[node.name] = found.get(node.name, 0) + node.self_ns
    return found
