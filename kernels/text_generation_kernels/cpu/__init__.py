"""The CPU backend, on plain torch ops in float32."""
