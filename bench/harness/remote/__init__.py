"""Benchmarks between hosts: `make bench-remote` and `make bench-growth`.

`contenders` and `others` take part, `run` lets them take turns, `figures` is what comes out; `goals`,
`report` and `plots` are made from that. `growth` asks how cost grows.
"""
