"""The models in docs/models/, checked by spin: what is claimed holds, and each refuted variant is found out.

A variant that passes would mean that the model cannot express the mistake, and that its green run proves
nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "docs" / "models" / "shared_reads.pml"
REFUTED = {
    "MARK_BEFORE_PAGE": "invalid end state",
    "CLEAR_AFTER_WRITE": "invalid end state",
    "LOOK_THEN_DRAIN": "invalid end state",
    "NO_HOLD": "assertion violated (page.since<=time)",
    "PARKED_DOES_NOT_COUNT": "assertion violated (page.since<=time)",
    "FRESH_IS_EMPTY": "assertion violated page.open",
}

needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")),
    reason="the models need spin and a C compiler: apt-get install spin gcc",
)


def check(directory: Path, *macros: str) -> str:
    """What the verifier says of every state of the model."""
    compiler = ["gcc", "-O2", "-DSAFETY", *macros, "-o", "pan", "pan.c"]
    for command in (["spin", *macros, "-a", str(MODEL)], compiler, ["./pan", "-m20000"]):
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.soak
@needs_spin
def test_shared_reads_keep_what_is_claimed_in_every_interleaving(tmp_path: Path) -> None:
    told = check(tmp_path)
    assert "errors: 0" in told, told
    assert "search depth too small" not in told
    assert "Warning: Search not completed" not in told


@pytest.mark.soak
@needs_spin
@pytest.mark.parametrize("macro", REFUTED)
def test_refuted_variants_of_shared_reads_are_found_out(macro: str, tmp_path: Path) -> None:
    told = check(tmp_path, f"-D{macro}")
    assert "errors: 1" in told, told
    assert REFUTED[macro] in told, told


def test_every_refuted_variant_is_a_macro_of_the_model_and_the_other_way_round() -> None:
    text = MODEL.read_text()
    assert set(re.findall(r"#ifn?def (\w+)", text)) == set(REFUTED)
    assert set(re.findall(r"-D(\w+)", text)) == set(REFUTED)
