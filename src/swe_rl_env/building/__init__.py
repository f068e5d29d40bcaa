"""From published archives to a checkout and an environment, byte for byte the same everywhere."""
