"""Where tokens live: the storage axis."""
