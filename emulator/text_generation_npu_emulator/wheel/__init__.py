"""The other host of the emulated NPU: the real torch_npu wheel, over a stand-in for the CANN runtime.

`torch.npu` is torch_npu's own here, and so are its allocator, formats, streams, graphs and signatures. Only what a card
would compute is computed by the same kernels as on the host made of Python. It needs g++ and torch_npu 2.13.0, both for
tests; what differs between the hosts is a mistake of the other one.
"""
