"""Outcomes as JUnit's XML, in the form that CI systems read: a suite, a case a file and mode.

What XML cannot hold (control characters of a replica's stderr, halves of surrogate pairs) is shown as
`\\xNN`.

Does not: print, decide what failed (run.py does).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from clusterd.driver.run import Outcome

__all__ = ["write_junit"]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {"fail": "failure", "skip": "skipped"}


def write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write `outcomes` to `path`."""
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name="scripts",
        tests=str(len(outcomes)),
        failures=str(sum(outcome.status == "fail" for outcome in outcomes)),
        errors="0",
        skipped=str(sum(outcome.status == "skip" for outcome in outcomes)),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        mode = f"[{outcome.mode}]" if outcome.mode else ""
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_shown(str(outcome.file.parent)),
            name=_shown(f"{outcome.file.stem}{mode}"),
            time=f"{outcome.seconds:.3f}",
        )
        if outcome.status in _TAGS:
            details = _shown(outcome.details)
            message = details.partition("\n")[0]
            ElementTree.SubElement(case, _TAGS[outcome.status], message=message).text = details
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _shown(text: str) -> str:
    return _NOT_XML.sub(lambda found: repr(found[0])[1:-1], text)
