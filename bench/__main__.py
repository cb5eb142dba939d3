"""Run benchmarks by name: `python -m bench [isolation peeks ...] [--smoke]`; without names, all of them."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from bench.harness import say

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(NAMES)} (default: all)"
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, nothing kept: do they still run?")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a look; nothing kept")
    parser.add_argument("--rows", type=int, help="another size than that of the bars; nothing kept")
    parser.add_argument("--only", metavar="PART", help="the cases whose name has PART in it")
    options = parser.parse_args()
    given: dict[str, Any] = {k: v for k in ("rows", "only") if (v := getattr(options, k)) is not None}
    given |= {"quick": True} if options.quick else {}
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark named {unknown[0]!r}; there are: {', '.join(NAMES)}")
    missed: list[str] = []
    for name in options.names or NAMES:
        module = importlib.import_module(f"bench.bench_{name}")
        say(f"bench-{name}: {(module.__doc__ or '').splitlines()[0]}")
        unfit = given.keys() - inspect.signature(module.run).parameters.keys()
        if unfit:
            parser.error(f"{name} takes no --{min(unfit)}")
        missed += [f"{name}: {case}" for case in module.run(smoke=options.smoke, **given)]
    if missed and not options.smoke:
        say("bars missed: " + "; ".join(missed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
