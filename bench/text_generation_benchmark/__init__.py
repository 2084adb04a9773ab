"""`text-generation-benchmark`: how fast a running shard is, without HTTP and text around it.

The measuring process (`worker`) drives the shard; the program that the user sees reads what it says and shows it.
"""
