"""Settings: from code, a file and the environment, each checked when it is made."""
