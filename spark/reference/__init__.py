"""The reference algebra in plain Python, which shares no code with the job."""
