"""The CPU's native kernels: a small C++ library (`src`), its build, its loader, and the ops on top of it."""
