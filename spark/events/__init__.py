"""The exported events: which files there are, how Spark reads them, and which records are none."""
