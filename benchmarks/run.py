"""Run every benchmark in turn, then renew RESULTS.md. Arguments are names of benchmarks to run: ``run.py blocks``."""

from __future__ import annotations

import subprocess
import sys

from harness import HERE, table


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return how many of them failed to run."""
    scripts = [HERE / f"bench_{name}.py" for name in names] or sorted(HERE.glob("bench_*.py"))
    failed = 0
    for script in scripts:
        print(f"== {script.stem}", flush=True)
        failed += subprocess.run([sys.executable, str(script)]).returncode != 0
    (HERE / "RESULTS.md").write_text(table(HERE / "results"))
    print(f"{failed} of {len(scripts)} benchmarks could not run; see {HERE / 'RESULTS.md'}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
