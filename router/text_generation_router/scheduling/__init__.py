"""What runs next, and in which blocks: plain synchronous Python on lists and ints. Standard library only."""
