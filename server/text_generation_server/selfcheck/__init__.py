"""What a shard does before it says that it is ready: compare its device with the reference, and its model with the CPU.

A server that would give wrong text does not start.
"""
