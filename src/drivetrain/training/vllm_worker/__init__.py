"""Code that runs inside vLLM's worker, which has no drivetrain: ``drivetrain_weights`` stands alone.

Put this folder on vLLM's ``PYTHONPATH`` and name the class; see :func:`drivetrain.training.file_transfer.server_flags`.
"""
