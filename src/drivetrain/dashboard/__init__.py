"""The live dashboard: a run's rollouts, rewards, tokens and engine on one page, updated by server-sent events."""
