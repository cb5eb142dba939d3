"""The settings registry, and which process dies how."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from clusterd import exit_codes
from clusterd.__main__ import main
from clusterd.config import DEFAULTS, SETTINGS, Config, merge_settings
from clusterd.errors import SocketInUse
from clusterd.process import exit_code_of
from controller_proto.errors import Refusal
from shm_arrangements.errors import ShmExhausted


def test_every_setting_has_a_default_that_is_legal_and_a_meaning() -> None:
    for name, setting in SETTINGS.items():
        assert merge_settings({}, {name: setting.default}) == {name: setting.default}
        assert setting.meaning
    # A value takes up to thrice what it is counted as, and an answer that is not stashed is one frame.
    assert 3 * int(DEFAULTS["stash_result_bytes"]) < Config().mux.max_frame_bytes


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"nope": 1}, "unknown-setting"), ({"max_result_bytes": 1.5}, "bad-message"),
        ({"max_result_bytes": -1}, "bad-message"), ({"max_result_bytes": 1 << 64}, "bad-message"),
        ({"enable_two_runtime_compute": 1}, "bad-message"), ({"read_routing": ""}, "bad-message"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_whole(given: dict[str, Any], code: str) -> None:
    with pytest.raises(Refusal) as raised:
        merge_settings(DEFAULTS, {"max_peeks_in_flight": 5, **given})
    assert raised.value.code == code
    assert next(iter(given)) in raised.value.message


def test_merging_leaves_its_arguments_alone() -> None:
    before = dict(DEFAULTS)
    merged = merge_settings(DEFAULTS, {"max_result_bytes": 7})
    assert merged["max_result_bytes"] == 7
    assert before == DEFAULTS


def test_an_error_decides_the_exit_code_of_its_process() -> None:
    assert exit_code_of(ShmExhausted("full", asked_bytes=1, free_bytes=0)) == exit_codes.SHM_EXHAUSTED
    assert exit_code_of(SocketInUse("there")) == exit_codes.SOCKET_IN_USE
    assert exit_code_of(Refusal("format-mismatch", "999")) == exit_codes.DATA_FORMAT
    assert exit_code_of(ValueError("x")) == exit_codes.PROCESS_DIED


def test_the_command_lists_every_setting_with_its_default_unit_and_meaning() -> None:
    told = CliRunner().invoke(main, ["config"])
    assert told.exit_code == 0, told.output
    for setting in SETTINGS.values():
        line, meaning = told.output.split(f"{setting.name} ", 1)[1].splitlines()[:2]
        assert line.startswith(f"{setting.type} = ")
        assert setting.unit in line
        assert setting.when in line
        assert meaning.strip() == setting.meaning
    lines = CliRunner().invoke(main, ["config", "--json"]).output.splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    assert {row["name"]: row["default"] for row in rows} == {s.name: s.default for s in SETTINGS.values()}
