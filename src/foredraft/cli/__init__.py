"""The command line: a dispatcher with lazy imports, and one module a verb.

stdout is the result, stderr is progress and statistics. Environment variables are read here and nowhere else.
"""
