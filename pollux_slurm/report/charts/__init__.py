"""Charts: plain numbers in, Altair's charts out; their axes and colours, and texts that are safe to show.

May be imported by `cli`, `report/document`, `report/parts`, `report/spans`, `simulator`, `web`.
"""
