"""How far off a plan's time estimate is: python benchmarks/estimates.py contracts --size 4 --times 3.

Plans and runs a workload several times, each time to a fresh database, with a cache folder of its own, so that the
first estimate knows of no run. Prints what the plan said and what the run took: loading and answering, as `runs` has
them, and the seconds of the whole command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.workloads import WORKLOADS, write_job


def main() -> None:
    """Run the workload of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=[*WORKLOADS, "sample-job"], help="or sample-job: sample_data/job.toml")
    parser.add_argument("--size", type=int)
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = ROOT / "sample_data" / "job.toml"
        if arguments.workload != "sample-job":
            job = write_job(arguments.workload, arguments.size, folder, [])
        for number in range(1, arguments.times + 1):
            print(f"run {number}: {compared(job, folder, folder / f'{number}.duckdb')}", flush=True)


def compared(job: Path, folder: Path, database: Path) -> str:
    """Plan and run a job to a database; what was said and what it took, in words."""
    said = docqa("plan", job, folder, database)["time_estimate"]
    started = time.monotonic()
    run = docqa("run", job, folder, database)
    command_seconds = time.monotonic() - started
    seconds = run["load_seconds"] + run["seconds"]
    took = f"{seconds:.1f} s (the command {command_seconds:.1f} s, load average {os.getloadavg()[0]:.1f})"
    if said is None:
        return f"{took}; no estimate, as no run has been on this machine"
    error = "not known from one run" if said["error"] is None else f"{said['error']:.0%}"
    return f"{took}; estimate {said['seconds']:.1f} s, off by {said['seconds'] / seconds - 1:+.1%}, said error {error}"


def docqa(command: str, job: Path, folder: Path, database: Path) -> dict[str, Any]:
    """What a command prints with --json."""
    words = [sys.executable, "-m", "docqa.main", command, str(job), "--output", str(database), "--json", "--quiet"]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"DOCQA_CACHE": str(folder / "cache")}, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    values: dict[str, Any] = json.loads(done.stdout)
    return values


if __name__ == "__main__":
    main()
