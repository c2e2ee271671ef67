"""`--log-format json`: one JSON object a line on stderr, with UTC time, level, event, message and further fields."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from docqa.exit_status import ENDED_ABNORMALLY, NOTHING_RUN, OUTPUT_HELD
from docqa.progress import LineInterval, progress_line, share_done
from docqa.run_log import stderr_line
from docqa.run_summary import SHOWN_DOCUMENTS
from jobs.observe import Progress

_ERRORS = (NOTHING_RUN, ENDED_ABNORMALLY, OUTPUT_HELD)


class JsonLog:
    """The log for programs; methods as in RunLog. `event` is one of stage, progress, note, error, finished."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._stage: str | None = None
        self._stage_interval = LineInterval(first_at_once=False)
        self._progress_interval = LineInterval(first_at_once=True)

    def __enter__(self) -> JsonLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is left to do: every line was written when it was said."""

    def stage(self, name: str) -> None:
        """A line for each new stage; how far it is (what stands after a comma) only as often as progress."""
        stage = name.partition(",")[0]
        if stage != self._stage or self._stage_interval.is_due():
            self._stage = stage
            self._write("info", "stage", name, stage=stage)

    def progress(self, progress: Progress) -> None:
        """The first at once, then at most one line in LINE_SECONDS."""
        if self._progress_interval.is_due():
            fields = asdict(progress) | {"share_done": share_done(progress)}
            self._write("info", "progress", progress_line(progress).strip(), **fields)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self._write("warning", "note", text)

    def finished(self, summary: dict[str, Any]) -> None:
        """How the run ended: the fields of its summary, without its settings, and the first few unreached documents."""
        status = summary["exit_status"]
        level = "info" if status == 0 else "error" if status in _ERRORS else "warning"
        fields = {name: value for name, value in summary.items() if name not in ("config", "message")}
        if "unreached_documents" in fields:  # of thousands a line would be too long for most readers of logs
            fields["unreached_documents"] = fields["unreached_documents"][:SHOWN_DOCUMENTS]
        self._write(level, "finished", summary["message"].partition("\n")[0], **fields)

    def error(self, message: str) -> None:
        """Something that went wrong."""
        self._write("error", "error", message)

    def _write(self, level: str, event: str, message: str, **fields: Any) -> None:
        if self._quiet and level != "error":
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": level, "event": event, "message": message, **fields}
        stderr_line(json.dumps(line, ensure_ascii=True))
