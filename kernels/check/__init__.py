"""Is a candidate right? One launch compared, a trial before timing, and the full verdict."""
