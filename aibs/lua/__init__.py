"""The Lua scripts: the only code that writes coordination state. See README.md beside this file.

This package decides how a script's text is put together from its parts; it never talks to a server.
"""
