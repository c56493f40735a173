"""A table of real flights, put on one node and queried in place on another: `plasmon demo` runs it.

`python -m plasmon.demo` is the same program.
"""
