"""The exported events: their files, how Spark reads them, and records that are not events."""
