"""`pollux simulate` and its subcommands `generate`, `import-sacct` and `export`.

May be imported by `cli` itself only.
"""
