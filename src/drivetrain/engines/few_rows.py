"""Linear layers over a handful of rows, as in decoding: the product is taken the other way round.

For ``x @ weight.T`` with 5 to 64 rows, MKL's fp32 kernel reads the weight up to half as fast as for ``weight @ x.T``;
both are the same sums of the same products (measured: benchmarks/README.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import linear

_FEW = range(5, 65)


class FewRows:
    """The fp32 linear layers of a model on the CPU; inside :meth:`used` they are taken the other way round.

    Layers of another class (quantised, adapters) and layers whose ``forward`` somebody has replaced are left alone. The
    weights are read at each call, so that they may be changed or replaced at any time.
    """

    def __init__(self, model: Any) -> None:
        self._forwards = [
            (module.__dict__, _forward(module))
            for module in model.modules()
            if type(module) is torch.nn.Linear and "forward" not in module.__dict__ and _suits(module.weight)
        ]

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Nobody else may call the model inside."""
        for own, forward in self._forwards:
            own["forward"] = forward
        try:
            yield
        finally:
            for own, _ in self._forwards:
                own.pop("forward", None)


def _suits(weight: Any) -> bool:
    return bool(weight.dtype == torch.float32 and weight.device.type == "cpu")


def _forward(module: Any) -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        weight, bias = module.weight, module.bias
        if x.ndim != 3 or x.shape[0] != 1 or x.shape[1] not in _FEW or not _suits(weight):
            return linear(x, weight, bias)
        out = linear(weight, x[0]).t().contiguous()  # later layers are slow on turned rows
        return (out if bias is None else out.add_(bias)).unsqueeze(0)

    return forward
