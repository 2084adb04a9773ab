"""The NPU backend, on torch_npu only: what each Ascend chip family can do, and the ops and device made from that."""
