"""The local engine: the part of PySpark's interface that the job uses, over DuckDB in this process. Imports no PySpark."""
