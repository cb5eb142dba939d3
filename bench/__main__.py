"""Run benchmarks by name: `python -m bench [isolation peeks ...] [--smoke]`; without names, all of them."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench.harness import say

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(NAMES)} (default: all)"
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, nothing kept: do they still run?")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark named {unknown[0]!r}; there are: {', '.join(NAMES)}")
    missed: list[str] = []
    for name in options.names or NAMES:
        module = importlib.import_module(f"bench.bench_{name}")
        say(f"bench-{name}: {(module.__doc__ or '').splitlines()[0]}")
        missed += [f"{name}: {case}" for case in module.run(smoke=options.smoke)]
    if missed and not options.smoke:
        say("bars missed: " + "; ".join(missed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
