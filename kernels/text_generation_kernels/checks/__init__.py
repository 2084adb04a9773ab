"""Ops compared with the reference on the device at hand, over the shapes of the model that it is to serve.

A chip's own kernels are not trusted because they ran. What is wrong is replaced by the op's next candidate, and said.
"""
