"""From graded rollouts to a GRPO step: TRL's ``rollout_func``, a fork-aware trainer and the recipe that fits agents.

Nothing here is imported by the rooms below; the command line imports these modules lazily because ``grpo``,
``microbatch``, ``train`` and ``live`` need torch and TRL.
"""
