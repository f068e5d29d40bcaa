"""Fine-tuning rows hold the sampled tokens and put a loss on those only."""

from __future__ import annotations

from drivetrain.trace.export.sft_tokens import sft_token_lines
from drivetrain.trace.sample import HarnessTrace


def test_labels_are_the_trained_tokens() -> None:
    row = HarnessTrace(
        prompt_ids=[5, 6], response_ids=[7, 8, 9], loss_mask=[1, 0, 1], response_logprobs=[-0.5, 0.0, -1.0]
    )
    assert sft_token_lines([row]) == [{"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, 7, -100, 9]}]
