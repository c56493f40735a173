# Two commands matter: `make demo` and `make test`. Each installs what it lacks, then runs.
# The work is done by the scripts in scripts/; every one of them can be run on its own.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all build setup fmt lint clean

help: ## Show this list
	@awk -F ': ## ' '/^[a-z-]+: ## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## Two nodes, 336,776 flights put on one and queried in place on the other
	@scripts/build.sh >&2
	@.venv/bin/python examples/flights/flights.py $(DEMO_ARGS)

test: ## Everything a change must pass: formatting, lints, types, all tests
	@scripts/test.sh

test-all: ## `make test`, the end-to-end tests on loopback too, the documentation and the demo
	@scripts/test.sh --all

build: ## target/release/plasmon, and the Python package in .venv
	@scripts/build.sh

setup: ## Only install what building and testing needs
	@scripts/setup.sh

fmt: ## Format Rust and Python
	@scripts/lint.sh --fix

lint: ## Formatting, clippy, ruff and mypy, changing nothing
	@scripts/lint.sh

clean: ## Remove everything that was built or downloaded
	@scripts/clean.sh
