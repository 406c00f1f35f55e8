"""Runs the lanes of `make test`: each a process of its own, all of them even when one fails.

Usage: python tests/lanes.py [--all] [--jobs N] [LANE ...]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLD_TRITON = ROOT / ".triton36"
CHECKS = (("ruff", "format", "--check"), ("ruff", "check"), ("mypy",))
PYTEST = (  # a test that hangs prints where, and ends its lane
    *("pytest", "-q", "--color=no"),
    *("-o", "faulthandler_timeout=300", "-o", "faulthandler_exit_on_timeout=true"),
)


@dataclass(frozen=True)
class Lane:
    """One pytest run: its rooms, each of which must have tests, and what it needs set first."""

    name: str
    rooms: tuple[str, ...]
    optional: tuple[str, ...] = ()
    marks: str = "not slow"
    interpret: bool = False
    old_triton: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a lane; `failed` counts tests, errors, and reasons to distrust the lane."""

    name: str
    text: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


PURE = ("tests/pure", "tests/laws", "tests/golden", "tests/door", "tests/test_tiny.py")
INTERPRETER, COMPILE = ("tests/interpreter",), ("tests/compile",)

# The longest first, so that they end together.
LANES = (
    Lane("interpreter", INTERPRETER, interpret=True),
    Lane("pure", PURE, optional=("tests/examples",)),
    Lane("compile", COMPILE),
    Lane("smoke-interpreter", INTERPRETER, marks="smoke", interpret=True, old_triton=True),
    Lane("smoke-compile", COMPILE, marks="smoke", old_triton=True),
)
ALL_LANES = (
    Lane("interpreter", INTERPRETER, marks="", interpret=True),
    Lane("interpreter-3.6", INTERPRETER, marks="", interpret=True, old_triton=True),
    Lane("compile", COMPILE, marks=""),
    Lane("compile-3.6", COMPILE, marks="", old_triton=True),
    Lane("pure", PURE, optional=("tests/examples",), marks=""),
)


def environment(lane: Lane) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "PYTHONPATH")}
    env["OMP_NUM_THREADS"] = "1"  # lanes run side by side
    if lane.interpret:
        env["TRITON_INTERPRET"] = "1"
    if lane.old_triton:
        env["PYTHONPATH"] = str(OLD_TRITON)
    return env


def execute(command: tuple[str, ...], env: dict[str, str] | None = None) -> tuple[int, str]:
    run = subprocess.run(
        (sys.executable, "-m", *command),
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return run.returncode, run.stdout


def counts(text: str) -> dict[str, int]:
    """The numbers in pytest's closing line, `3 passed, 1 skipped in 0.12s`; empty if none came."""
    closing = re.findall(r"^=*\s*(\d+ \w+.*) in \d+\.\d+s.*$", text, re.MULTILINE)
    found = re.findall(r"(\d+) (\w+)", closing[-1]) if closing else []
    return {word.rstrip("s"): int(number) for number, word in found}


def has_tests(room: str) -> bool:
    path = ROOT / room
    return path.is_file() or any(path.glob("**/test_*.py"))


def run_lane(lane: Lane) -> Outcome:
    start = time.monotonic()
    present = [room for room in (*lane.rooms, *lane.optional) if has_tests(room)]
    wrong = [f"{room} has no tests" for room in lane.rooms if room not in present]
    if lane.old_triton and not any(OLD_TRITON.glob("triton-3.6.*")):
        wrong.append(f"{OLD_TRITON.name} holds no Triton 3.6: run make smoke")
        present = []
    status, text, count = 0, "", {}
    if present:
        status, text = execute((*PYTEST, "-m", lane.marks, *present), environment(lane))
        count = counts(text)
    failed = count.get("failed", 0) + count.get("error", 0)
    if status and not failed:
        wrong.append(f"pytest ended with status {status}")
    elif present and not count.get("passed") and not failed:
        wrong.append("nothing passed")
    return Outcome(
        lane.name,
        text + "".join(f"LANE FAILED: {reason}\n" for reason in wrong),
        passed=count.get("passed", 0) + count.get("xfailed", 0),
        failed=failed + len(wrong),
        skipped=count.get("skipped", 0),
        seconds=time.monotonic() - start,
    )


def run_checks() -> Outcome:
    """Format, lint and types; a check that complains counts as one failure."""
    start = time.monotonic()
    runs = [(" ".join(check), *execute(check)) for check in CHECKS]
    text = "".join(f"{name}: {out}" for name, status, out in runs)
    failed = sum(status != 0 for _, status, _ in runs)
    return Outcome("checks", text, failed=failed, seconds=time.monotonic() - start)


def report(outcome: Outcome) -> Outcome:
    print(f"\n==== {outcome.name}\n{outcome.text}", end="", flush=True)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    head = f"{'lane':<18} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"
    rows = (
        f"{o.name:<18} {o.passed:>7} {o.failed:>7} {o.skipped:>8} {o.seconds:>8.1f}"
        for o in outcomes
    )
    return "\n".join(("", head, *rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lanes", nargs="*", metavar="LANE")
    parser.add_argument("--all", action="store_true", help="slow tests and all of Triton 3.6 too")
    parser.add_argument("--jobs", type=int, default=1, help="lanes at a time")
    options = parser.parse_args()
    jobs = {lane.name: lambda lane=lane: run_lane(lane) for lane in LANES}
    if options.all:
        jobs = {lane.name: lambda lane=lane: run_lane(lane) for lane in ALL_LANES}
    jobs = {"checks": run_checks, **jobs}
    wanted = options.lanes or list(jobs)
    if unknown := [name for name in wanted if name not in jobs]:
        parser.error(f"no lane {', '.join(unknown)}; there are {', '.join(jobs)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda name: report(jobs[name]()), wanted))
    print(table(outcomes))
    passed, failed, skipped = (
        sum(getattr(o, kind) for o in outcomes) for kind in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
