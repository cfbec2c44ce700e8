"""`pollux simulate` and its subcommands `generate`, `import-sacct`, `import-trace` and `export`.

May be imported by `cli` itself only.
"""
