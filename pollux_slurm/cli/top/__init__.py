"""`pollux top`: the picture of now, live in a terminal. Needs the extra `view` (Textual).

May be imported by `cli`.
"""
