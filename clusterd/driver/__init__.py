"""Driver: a headless controller that does exactly what a script says and holds the answers against it.

`run.py` runs files, `driver.py` the directives, `session.py` a connection and what it has a right to expect.
"""
