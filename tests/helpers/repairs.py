"""Repairs that are announced before they are done."""

from __future__ import annotations

from pathlib import Path

from workspan.store.repair import RepairReport, repair


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below *path*, with the time of its last change and its content."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def announced_repair(path: Path) -> RepairReport:
    """Repair a store; a dry run before it must change nothing and announce exactly that."""
    before = files(path.parent)
    planned = repair(path, dry_run=True)
    assert files(path.parent) == before
    done = repair(path)
    assert planned == RepairReport(done.path, done.fixes, done.reset, None)
    return done
