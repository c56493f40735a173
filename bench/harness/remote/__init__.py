"""Benchmarks between hosts: `make bench-remote` and `make bench-growth`.

`contenders` and `others` have the contenders, `run` measures them in turn, and `figures` has the results.
`goals`, `report` and `plots` are made from the results. `growth` measures how cost grows.
"""
