"""Files on volumes of Plasmon, beside other file systems, memory, and a mount without a node.

`command` runs everything, `stores` and `others` are what is measured, `run` measures on two hosts, `crowd`
on five, `project` with real programs, and `report` makes the section of the page, with `goals` and `plots`.
"""
