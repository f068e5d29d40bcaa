"""From a patch to a verdict, out of the agent's reach."""
