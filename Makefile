# Every target installs what it needs into .venv (once) and can be repeated.
# ARGS goes to the command behind the target: make demo ARGS="--workers 4", make test ARGS="tests/grid -x".
# PYTHON names the interpreter of a new .venv; by default the oldest supported one that tools/pythons finds.

.PHONY: help demo test campaign lint bench docs clean

help:
	@echo "make demo | test | campaign | lint | bench | docs | clean"

demo:
	@tools/venv .venv demo
	.venv/bin/workspan demo $(ARGS)

# On the oldest supported Python, then on the newest one found; at most five minutes each on two cores. The second run
# (WORKSPAN_FURTHER=1) leaves out what cannot differ: tests marked "once" and the pass over the pure-Python twin.
test:
	@tools/venv .venv demo dev bench
	tools/suite .venv $(ARGS)
	@set -e; set -- $$(tools/pythons newest); \
	if [ "$$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" != "$$1" ]; then \
		PYTHON="$$2" tools/venv .venv-$$1 demo dev bench; \
		WORKSPAN_FURTHER=1 tools/suite .venv-$$1 $(ARGS); \
	fi

# The long campaigns: thousands of random examples, mutated stores and kills; a quarter of an hour.
campaign:
	@tools/venv .venv demo dev bench
	WORKSPAN_FULL=1 tools/suite .venv --timeout=900 $(ARGS)

lint:
	@tools/venv .venv demo dev bench
	.venv/bin/python -m ruff check
	.venv/bin/python -m mypy

bench:
	@tools/venv .venv demo bench ray
	.venv/bin/python benchmarks/run.py $(ARGS)

docs:
	@tools/venv .venv demo dev bench
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf .venv .venv-3.* build docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f src/workspan/measure/_ti*.so src/workspan/measure/_ti*.c
