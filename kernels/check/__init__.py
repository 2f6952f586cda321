"""Is a candidate right? One launch compared, and the full verdict."""
