"""The benchmarks: every peer and the machine itself, measured in one run by one harness.

`make bench-local`, `make bench-objects` and `make bench-report` call it; `docs/benchmarks.md` says what is
measured and how.
"""
