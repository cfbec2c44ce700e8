"""Charts: plain numbers in, Altair's charts out; their axes and colours, and texts that are safe to show.

May be imported by `cli`, `document/forms`, `document` itself, `report`, `simulator`, `web`.
"""
