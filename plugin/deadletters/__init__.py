"""Dead letters: listed by their causes, looked at, sent again to their own group, and marked. No worker is asked, or needed."""
