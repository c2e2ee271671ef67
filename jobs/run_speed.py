"""How fast runs were on this machine: one short record a run, kept in the cache folder, for estimates of later runs."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from engine.errors import ModelError
from engine.model_source import cache_folder

logger = logging.getLogger(__name__)

KEPT_RECORDS = 100
"""Records of a model that are kept, the newest ones."""


@dataclass(frozen=True)
class SpeedSetting:
    """What must be equal for two runs to be as fast: the machine, the model, and the job's settings of the engine.

    `device`, `dtype` and `kv_dtype` are the job's settings; `auto` becomes the same on the same machine.
    """

    machine: str
    model_fingerprint: str
    device: str
    dtype: str
    deterministic: bool
    kv_dtype: str = "auto"


@dataclass(frozen=True)
class RunSpeed:
    """What a finished run did, and how long that took. `answers` is a digest of its schemas and max_tokens.

    Prompt and output seconds are of the engine's steps, as StepRecord shares them out; what is neither, such as
    validating and writing, is `other_seconds`. `model_seconds` is the time to load the model, without planning.
    """

    setting: SpeedSetting
    answers: str
    rows: int
    requests: int  # rows, without those that asked the very same as another
    prompt_flops: int
    prompt_seconds: float
    output_tokens: int
    output_flops: int
    output_seconds: float
    other_seconds: float
    model_seconds: float
    recorded_at: str = ""

    @property
    def seconds(self) -> float:
        """From loading the model to the last answer."""
        return self.model_seconds + self.prompt_seconds + self.output_seconds + self.other_seconds


def record_run_speed(speed: RunSpeed, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
    """Add a record. A cache folder that can't be written is no reason to end a run: then there is no record."""
    values = asdict(speed) | {"recorded_at": now().isoformat(timespec="seconds")}
    try:
        path = _path(speed.setting.model_fingerprint)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another run may end at the same time
            file.write(json.dumps(values) + "\n")
            file.seek(0)
            lines = file.readlines()
            if len(lines) > 2 * KEPT_RECORDS:
                file.truncate(0)
                file.writelines(lines[-KEPT_RECORDS:])
    except (OSError, ModelError) as error:
        logger.debug("the run's speed could not be kept: %s", error)


def run_speeds(setting: SpeedSetting) -> list[RunSpeed]:
    """The records of runs as fast as one with this setting, the newest last."""
    try:
        lines = _path(setting.model_fingerprint).read_text(encoding="utf-8").splitlines()
    except (OSError, ModelError, UnicodeDecodeError):
        return []
    speeds = []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):  # a line that was cut, or of another version, is no record
            values = json.loads(line)
            if set(values) == {column.name for column in fields(RunSpeed)}:
                speed = RunSpeed(**values | {"setting": SpeedSetting(**values["setting"])})
                if speed.setting == setting:
                    speeds.append(speed)
    return speeds


def _path(model_fingerprint: str) -> Path:
    return cache_folder() / "run_speeds" / f"{os.path.basename(model_fingerprint)[:16]}.jsonl"
