"""Charts as SVG text, their axes, and texts that are safe to show.

May be imported by `cli`, `report/document`, `report/parts`, `simulator`.
"""
