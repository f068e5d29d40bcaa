"""The HTTP server a harness talks to: token-in / token-out behind the API the harness already speaks."""
