"""The generated wire between router and shards. `generate.proto` is the source; `make proto` makes the rest."""

PROTOCOL_VERSION = 4
"""Goes up with every change of generate.proto that an older peer would misread."""
