"""The models that can be served: `families` says which, `causal_lm` computes them, `loading` reads their weights."""
