"""The one error of this package: what it says is the line that the user reads."""


class DownloadError(Exception):
    """Weights could not be had. The message is one line: what was seen, what is allowed, what to do."""
