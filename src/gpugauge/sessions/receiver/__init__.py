"""The receiver: a small process that accepts the connections of hooks and closes what they hand over.

It runs isolated (`python -I -S`) and imports C modules only, because each imported module costs memory.
"""
