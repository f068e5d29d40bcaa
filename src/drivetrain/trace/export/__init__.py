"""A rollout in the formats of others: OpenEnv, ATIF, SFT messages, Parquet.

TRL's ``rollout_func`` dict is made by :func:`drivetrain.training.rows.to_rollout_func_dict`: it needs a graded rollout
and the tokenizer's ids, which this layer does not know.
"""
