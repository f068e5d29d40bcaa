"""drivetrain: agentic RL through black-box coding-agent harnesses, on token-faithful traces."""

__version__ = "0.1.0"
