"""One episode: sandbox + harness + gateway session + verify -> RolloutResult; many of them, concurrently."""
