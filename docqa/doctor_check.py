"""What a check of `docqa doctor` says."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, how it is, and what to do if it is not as it should be.

    `fail`: a run would not work. `warn`: it works, but something is worth knowing.
    """

    name: str
    status: str
    text: str
    advice: str = ""
