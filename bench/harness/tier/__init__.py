"""Regions beside the machine, the network without a store, and Redis.

`command` runs everything, `run` measures operations, `many` how they grow with the number of regions, and
`report` makes the section of the page, with `goals` and `plots`.
"""
