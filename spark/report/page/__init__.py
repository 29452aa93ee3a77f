"""The report as one HTML page: data first, markup last."""
