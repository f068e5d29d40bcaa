"""The trace viewer: one rollout as one HTML file that needs no network and no server."""
