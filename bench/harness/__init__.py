"""Benchmarks: one harness measures every peer, and the machine itself, in one run.

`make bench-local`, `make bench-objects` and `make bench-report` call it. `docs/benchmarks.md` describes the
measurements.
"""
