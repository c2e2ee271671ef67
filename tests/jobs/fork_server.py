"""Runs jobs in processes of their own, which tests may kill: everything is imported once, then each run is a fork.

Run as `python -m tests.jobs.fork_server`. Lines on stdin are JSON: the arguments of `_child`. Answers on stdout: the
child's process id when it begins. What a child says goes to the file `log`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ForkServer:
    """The side of the tests."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.fork_server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, job, log, overrides=(), publish_rows=1, step_seconds=0.0, file_limit=None, limit_rows=0,
        wait_seconds=0.0, gate=None, gate_rows=0,
    ):  # fmt: skip
        """Start a run of a job file; returns its process id.

        `file_limit`: no file may grow beyond so many bytes, once `limit_rows` rows are done. `gate`: no step is taken
        before that file is there, once `gate_rows` rows are done.
        """
        log.write_text("")
        command = {
            "job": str(job), "log": str(log), "overrides": list(overrides), "publish_rows": publish_rows,
            "step_seconds": step_seconds, "file_limit": file_limit, "limit_rows": limit_rows,
            "wait_seconds": wait_seconds, "gate": None if gate is None else str(gate), "gate_rows": gate_rows,
        }  # fmt: skip
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self, pid):
        """Wait for the end of a child; returns its exit status, negative for a signal."""
        self._process.stdin.write(json.dumps({"wait": pid}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self):
        """End the server."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _child(
    job, log, overrides, publish_rows, step_seconds, file_limit, limit_rows, wait_seconds, gate, gate_rows
):  # fmt: skip
    import resource

    import torch

    from docqa.exit_status import exit_status_of
    from engine.engine import Engine
    from jobs import run_output
    from jobs.job_file import load_job
    from jobs.observe import Observer, StopRequest
    from jobs.run import run_job

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    run_output.PUBLISH_ROWS, run_output.PUBLISH_SHARE = publish_rows, 1.0
    step, rows_done = Engine.step, 0

    def held_step(engine):
        time.sleep(step_seconds)
        while gate is not None and rows_done >= gate_rows and not os.path.exists(gate):
            time.sleep(0.005)
        return step(engine)

    Engine.step = held_step
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(rows_done):
        if file_limit and rows_done >= limit_rows:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    def progress(progress):
        nonlocal rows_done
        rows_done = progress.rows_done
        print("done", progress.rows_done, flush=True)
        limit(progress.rows_done)

    limit(0)
    stop = StopRequest()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stop.request(number))
    observer = Observer(
        on_stage=lambda stage: print("stage", stage, flush=True),
        on_note=lambda note: print("note", note, flush=True),
        on_progress=progress,
    )
    try:
        outcome = run_job(
            load_job(Path(job), overrides),
            command="docqa run test",
            stop=stop,
            observer=observer,
            wait_seconds=wait_seconds,
        )
    except Exception as error:
        print("error", error, flush=True)
        return exit_status_of(error) or 70
    print("ended", outcome.run.status, outcome.run.error, flush=True)
    return outcome.exit_status


def main():
    """Serve until stdin ends."""
    import transformers  # noqa: F401

    import jobs.model
    import jobs.run

    jobs.model.choose_device("cpu")
    import engine.decoder
    import engine.engine  # noqa: F401

    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            print(os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.close(0)
                status = _child(**command)
            finally:
                os._exit(status)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
