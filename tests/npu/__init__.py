"""torch_npu itself, over an AscendCL of our own that runs on the CPU."""
