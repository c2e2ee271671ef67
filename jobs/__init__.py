"""A batch job: Parquet to plan to run to DuckDB."""
