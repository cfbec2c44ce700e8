"""`pollux simulate` and its subcommands `sweep`, `generate`, `import-sacct` and `export`.

May be imported by `cli` itself only.
"""
