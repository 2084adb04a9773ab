"""Grammars: what a client says the answer must look like, as masks over the model's vocabulary."""
