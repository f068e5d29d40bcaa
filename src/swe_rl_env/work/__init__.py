"""The agent's side: the workspace it works in, the patch that is taken from it, and agents without a model."""
