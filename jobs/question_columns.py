"""The columns that say how a question is asked, and what types they may have."""

from __future__ import annotations

import pyarrow as pa

from jobs.source_values import is_id_type, is_list_type, plain_type

PROGRAM_COLUMNS = ("after", "follow_up", "samples")
"""The columns that say how a question is asked."""


def is_after_type(data_type: pa.DataType) -> bool:
    """Whether a column can be `after`: ids, or lists of them."""
    data_type = plain_type(data_type)
    return is_id_type(data_type.value_type if is_list_type(data_type) else data_type)


def is_flag_type(data_type: pa.DataType) -> bool:
    """Whether a column can be `follow_up`."""
    data_type = plain_type(data_type)
    return bool(pa.types.is_boolean(data_type) or pa.types.is_null(data_type))


def is_count_type(data_type: pa.DataType) -> bool:
    """Whether a column can be `samples`."""
    data_type = plain_type(data_type)
    return bool(pa.types.is_integer(data_type) or pa.types.is_null(data_type))
