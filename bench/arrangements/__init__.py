"""The cases of `bench_arrangements`, by what they do: load, update, read; and what they share."""
