"""How our programs are spoken to: options declared once, and log lines. Standard library only."""

__version__ = "0.1.0"
