"""The web page at /ui: a playground and a live view of the server."""
