"""`text-generation-server report`: what belongs to a bug report from a real card, in one text file without secrets.

`sections` gathers, `secrets` takes out what nobody else may see, `command` writes the file. No torch here.
"""
