"""Code that runs inside a sandbox, under whatever Python (3.9+) the box offers: standard library only."""
