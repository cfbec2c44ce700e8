"""Many simulations: settings, runs, sweeps, and their page.

May be imported by `cli`.
"""
