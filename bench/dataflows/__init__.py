"""Cases of the bars of dataflows: each a function that measures, checks its answer, and gives figures."""
