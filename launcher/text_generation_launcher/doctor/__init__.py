"""`text-generation-launcher doctor`: what is there, what is not, and what to do, before anything is loaded.

`host` touches the machine, `probes` and its neighbours turn what it says into facts, `findings` judge facts,
`rendering` prints. No torch here: torch and torch_npu are imported by a child process (`import_child`).
"""
