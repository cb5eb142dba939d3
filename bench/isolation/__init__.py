"""The cases of bench_isolation."""
