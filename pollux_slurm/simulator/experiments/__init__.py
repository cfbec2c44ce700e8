"""Many simulations: settings, runs, means of runs, tables, and their page.

May be imported by `cli`.
"""
