"""The supervisor with fake workers: READY, ordered stop, shared fate, exit codes, sweeping (R1, R2, M1)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterd import exit_codes
from controller_proto.client import WireClient
from controller_proto.command import CreateInstance, InitializationComplete, Peek
from controller_proto.errors import Disconnected
from controller_proto.response import Closing
from shm_arrangements.instance import list_instances
from tests.clusterd.test_endpoint import create

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

DEADLINE_S = 15.0
ENDS_WITHIN_S = 2.0  # R1
ROOT = Path(__file__).parents[2]

_SERVE = """
import sys
from pathlib import Path
from clusterd.config import Config, SupervisorConfig
from clusterd.supervisor import ServeOptions, serve
path, workers, entry, stop_deadline_s = sys.argv[1:]
sys.exit(serve(ServeOptions(
    Path(path), interactive_workers=int(workers), worker_entry=f"tests.clusterd.fake_worker:{entry}",
    config=Config(supervisor=SupervisorConfig(stop_deadline_s=float(stop_deadline_s))),
)))
"""


class Daemon:
    def __init__(self, path: Path, interactive: int, entry: str, stop_deadline_s: float) -> None:
        self.path = path
        self._stderr = path.with_suffix(".err")
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(path), str(interactive), entry, str(stop_deadline_s)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
            )
        self.facts: dict[str, Any] = {}

    def ready(self) -> Daemon:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"READY "), (line, self.events())
        self.facts = json.loads(line.removeprefix(b"READY "))
        return self

    @property
    def pids(self) -> dict[str, int]:
        return dict(self.facts["pids"])

    @property
    def token(self) -> str:
        return str(self.facts["instance"])

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = self._stderr.read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [event for event in found if kind is None or event["event"] == kind]

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def segments(self) -> list[str]:
        return [name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{self.token}.")]

    def living(self) -> list[int]:
        return [pid for pid in self.pids.values() if is_running(pid)]

    def client(self) -> WireClient:
        client = WireClient.connect(f"unix:{self.path}", timeout_s=DEADLINE_S)
        client.hello(str(uuid.uuid4()))
        client.send(CreateInstance(0))
        client.send(InitializationComplete(0))
        create(client, "u1")
        client.sync(DEADLINE_S)
        return client

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def begin(
        interactive: int = 1, entry: str = "run_worker", *, name: str = "s", stop_deadline_s: float = 5.0
    ) -> Daemon:
        daemons.append(Daemon(tmp_path / name, interactive, entry, stop_deadline_s))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.close()
    for daemon in daemons:
        if daemon.facts:
            wait_until(lambda daemon=daemon: not daemon.living(), DEADLINE_S, "all processes ended")  # type: ignore[misc]


@pytest.mark.parametrize("interactive", [0, 2])
def test_ready_names_every_process_and_term_stops_in_order(
    start: Callable[..., Daemon], interactive: int
) -> None:
    daemon = start(interactive).ready()
    workers = ["maintenance/0", "interactive/0", "interactive/1"] if interactive else ["solo/0"]
    assert set(daemon.pids) == {"supervisor", "reaper", "mux", *workers}
    assert daemon.facts["listen"] == f"unix:{daemon.path}"
    assert daemon.facts["data_dir"] is None
    assert daemon.segments()
    for name, pid in daemon.pids.items():
        process = psutil.Process(pid)
        assert (
            process.name() if name == "reaper" else process.cmdline()[0].removeprefix("clusterd: ")
        ) == name
    assert oct(daemon.path.stat().st_mode & 0o777) == "0o600"
    with daemon.client() as client:
        daemon.process.terminate()
        closing = client.wait_for(lambda r: isinstance(r, Closing), DEADLINE_S)
        assert isinstance(closing, Closing)
        assert closing.code == "disconnected"
    assert daemon.wait() == exit_codes.STOPPED
    assert [event["event"] for event in daemon.events()] == ["Stopping", "Stopped"]
    assert not daemon.living()
    assert not daemon.segments()
    assert not daemon.path.exists()


def test_the_reaper_lives_in_its_own_session_and_maintenance_gives_way(start: Callable[..., Daemon]) -> None:
    daemon = start().ready()
    sessions = {name: os.getsid(pid) for name, pid in daemon.pids.items()}
    assert sessions["reaper"] == daemon.pids["reaper"]
    assert sessions["mux"] == sessions["supervisor"]
    nice = {name: psutil.Process(pid).nice() for name, pid in daemon.pids.items()}
    assert nice["maintenance/0"] > nice["interactive/0"] == nice["mux"]


@pytest.mark.parametrize("target", ["mux", "maintenance/0", "interactive/0", "reaper"])
def test_m1_m2_a_killed_process_takes_all_with_it(start: Callable[..., Daemon], target: str) -> None:
    daemon = start().ready()
    with daemon.client() as client:
        client.send(Peek(0, uuid="a", id="u1", time=99))
        begun = time.monotonic()
        os.kill(daemon.pids[target], signal.SIGKILL)
        assert daemon.wait() == exit_codes.PROCESS_DIED
        assert time.monotonic() - begun < ENDS_WITHIN_S
        wait_until(lambda: not daemon.living(), ENDS_WITHIN_S, "every process ended")
        assert not daemon.segments()
        assert not daemon.path.exists()
        (event,) = daemon.events()
        assert (event["event"], event["process"], event["signal"]) == ("ProcessDied", target, "SIGKILL")
        assert event["status"] == -signal.SIGKILL
        assert "exit_code" not in event
        assert event["hint"] == "start it again: it hydrates from its shards"
        with pytest.raises(Disconnected):
            client.wait_for(lambda r: False, DEADLINE_S)


def test_m2_an_exception_in_a_worker_is_named_in_the_one_line(start: Callable[..., Daemon]) -> None:
    daemon = start().ready()
    with daemon.client() as client:
        client.send(Peek(0, uuid="a", id="u1", time=0, keys=(("boom",),)))
        assert daemon.wait() == exit_codes.PROCESS_DIED
    (event,) = daemon.events()
    assert event["process"] == "interactive/0"
    assert event["exception"] == "ValueError: as asked"
    assert "fake_worker.py" in event["traceback"]


def test_m6_a_worker_out_of_shared_memory_has_its_own_exit_code(start: Callable[..., Daemon]) -> None:
    daemon = start(0).ready()
    with daemon.client() as client:
        client.send(Peek(0, uuid="a", id="u1", time=0, keys=(("full",),)))
        assert daemon.wait() == exit_codes.SHM_EXHAUSTED
    (event,) = daemon.events()
    assert "4096" in event["reason"]
    assert "17" in event["reason"]


def test_m3_the_reaper_cleans_up_after_a_killed_supervisor_and_leaves_others_alone(
    start: Callable[..., Daemon],
) -> None:
    victim, other = start(name="a").ready(), start(name="b").ready()
    kept = other.segments()
    os.kill(victim.pids["supervisor"], signal.SIGKILL)
    took = wait_until(lambda: not victim.living() and not victim.segments(), 4, "all is gone")
    assert took < ENDS_WITHIN_S
    assert other.segments() == kept
    assert len(other.living()) == 5
    victim.wait()


@pytest.mark.alone
def test_m3_the_next_start_sweeps_what_supervisor_and_reaper_left(start: Callable[..., Daemon]) -> None:
    victim, other = start(name="a").ready(), start(name="b").ready()
    os.kill(victim.pids["reaper"], signal.SIGSTOP)
    os.kill(victim.pids["supervisor"], signal.SIGKILL)
    os.kill(victim.pids["reaper"], signal.SIGKILL)
    wait_until(lambda: not victim.living(), ENDS_WITHIN_S, "every process ended")
    victim.wait()
    assert victim.segments()
    again = start(name="a").ready()  # on the same path: the file is stale
    assert not victim.segments()
    assert other.segments()
    kinds = [event["event"] for event in again.events()]
    assert kinds == ["StaleSocketReplaced", "InstanceSwept"]
    assert victim.token in again.events("InstanceSwept")[0]["tokens"]


def test_a_socket_in_use_is_refused_and_the_daemon_there_is_unharmed(start: Callable[..., Daemon]) -> None:
    first = start(0).ready()
    instances = {info.token for info in list_instances() if info.alive}
    second = start(0)
    assert second.wait() == exit_codes.SOCKET_IN_USE
    (event,) = [e for e in second.events() if e["event"] == "StartFailed"]
    assert str(first.path) in event["reason"]
    assert {info.token for info in list_instances() if info.alive} >= {first.token} & instances
    first.client().close()


def test_two_starts_at_once_on_a_stale_path_give_one_daemon(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "s"))
    stale.close()
    pair = [start(0), start(0)]
    wait_until(lambda: any(d.process.poll() is not None for d in pair), DEADLINE_S, "one gave up")
    loser, winner = sorted(pair, key=lambda d: d.process.poll() is None)
    assert loser.wait() == exit_codes.SOCKET_IN_USE
    winner.ready().client().close()


def test_a_path_that_is_no_socket_is_left_alone(start: Callable[..., Daemon], tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    daemon = start(0)
    assert daemon.wait() == exit_codes.USAGE
    assert (tmp_path / "s").read_text() == "mine"


@pytest.mark.parametrize(
    ("entry", "code"),
    [("run_failing_worker", exit_codes.START_FAILED), ("run_mismatched_worker", exit_codes.DATA_FORMAT)],
)
def test_a_worker_that_cannot_start_ends_the_start(
    start: Callable[..., Daemon], entry: str, code: int
) -> None:
    daemon = start(0, entry)
    assert daemon.wait() == code
    (event,) = daemon.events()
    assert event["process"] == "solo/0"
    assert "cannot start" in event["reason"] or "999" in event["reason"]
    assert not daemon.path.exists()


@pytest.mark.parametrize("case", ["cannot be made", "other files", "other format"])
def test_a_data_directory_that_cannot_be_used_is_found_before_any_child_starts(
    tmp_path: Path, case: str
) -> None:
    directory, code = tmp_path / "data", exit_codes.DATA_FORMAT
    if case == "cannot be made":
        directory, code = Path("/proc/foo"), exit_codes.START_FAILED
    else:
        directory.mkdir()
        name = "letter.txt" if case == "other files" else "VERSION"
        (directory / name).write_text("clusterd-data 99\n")
    command = [sys.executable, "-m", "clusterd", "serve", "--listen", f"unix:{tmp_path / 's'}"]
    ended = subprocess.run(
        [*command, "--data-dir", str(directory)], capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    (failed,) = [event for event in events if event["event"] != "InstanceSwept"]
    assert (failed["event"], failed["exit_code"]) == ("StartFailed", code)
    assert f"data directory {directory}" in failed["reason"]
    assert failed["hint"]
    assert not (tmp_path / "s").exists()


def test_a_worker_that_does_not_leave_is_killed_at_the_deadline(start: Callable[..., Daemon]) -> None:
    daemon = start(1, "run_deaf_worker", stop_deadline_s=0.3).ready()
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.wait() == exit_codes.STOPPED
    (event,) = daemon.events("StopTimedOut")
    assert set(event["processes"]) >= {"maintenance/0", "interactive/0"}
    assert not daemon.living()
    assert not daemon.segments()


def test_a_second_signal_does_not_wait(start: Callable[..., Daemon]) -> None:
    daemon = start(0, "run_deaf_worker", stop_deadline_s=DEADLINE_S).ready()
    daemon.process.terminate()
    wait_until(lambda: bool(daemon.events("Stopping")), DEADLINE_S, "the stop began")
    begun = time.monotonic()
    daemon.process.terminate()
    assert daemon.wait() == exit_codes.STOPPED
    assert time.monotonic() - begun < ENDS_WITHIN_S


def test_an_idle_daemon_makes_no_wake_ups(start: Callable[..., Daemon]) -> None:
    daemon = start(1).ready()

    def switches() -> dict[str, int]:
        found = {}
        for name in ("supervisor", "reaper", "mux"):
            status = Path(f"/proc/{daemon.pids[name]}/status").read_text()
            found[name] = int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        return found

    daemon.client().close()
    before: dict[str, int] = {}
    while before != (before := switches()):  # until what the client caused is over
        time.sleep(0.5)
    time.sleep(1.0)  # the measurement itself
    assert switches() == before


def test_mux_supervisor_and_reaper_load_no_numeric_libraries(start: Callable[..., Daemon]) -> None:
    daemon = start(1).ready()
    for name in ("supervisor", "reaper", "mux"):
        maps = Path(f"/proc/{daemon.pids[name]}/maps").read_text()
        assert not [word for word in ("numpy", "llvmlite", "numba", "arrow") if word in maps], name


def test_the_light_modules_import_nothing_heavy() -> None:
    code = (
        "import sys, clusterd.supervisor, clusterd.endpoint, clusterd.__main__\n"
        "print([m for m in ('numpy', 'numba', 'pyarrow', 'pandas', 'rich') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=DEADLINE_S
    )
    assert told.stdout.strip() == "[]"
