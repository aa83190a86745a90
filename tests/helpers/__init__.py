"""Code shared by tests: `from helpers.leaks import ...` (tests/ is on the import path of pytest)."""
