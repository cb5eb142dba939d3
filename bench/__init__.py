"""Benchmarks: one question a file; `python -m bench [NAME ...] [--smoke]` runs them."""
