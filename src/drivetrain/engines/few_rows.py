"""Linear layers over a handful of rows, as in decoding, from a copy of their weights that is laid out for it.

``x @ weight.T`` reads a weight ``[out, in]`` two to three times slower than ``x @ turned`` reads its transpose
``[in, out]`` when ``x`` has 4 to 16 rows (MKL, fp32); with 64 rows they are equal. The same sums of the same products
either way (measured: benchmarks/README.md). The output layer is as large as a dozen others: it gets no copy, and its
product is taken the other way round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import linear

MOST_ROWS = 64
_LARGE = 1 << 23
"""Elements of a weight that is not copied."""
_SWAPPED = range(4, MOST_ROWS + 1)
"""Rows for which a large product is faster the other way round."""


class FewRows:
    """The fp32 linear layers of a model on the CPU; inside :meth:`used` a few rows take the fast way.

    The copies take as much memory as the layers and are made at the first use. They are made anew when a weight is
    replaced or changed in place, as far as torch counts that; after changes behind its back (``weight.data``) a new
    ``FewRows`` is needed. Layers of another class (quantised, adapters) and layers whose ``forward`` somebody has
    replaced are left alone.
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
    return bool(weight.dtype == torch.float32 and weight.device.type == "cpu" and not weight.is_inference())


def _forward(module: Any) -> Callable[[Any], Any]:
    turned: tuple[Any, int, Any] = (None, -1, None)  # weight, its version, the copy

    def forward(x: Any) -> Any:
        nonlocal turned
        weight, bias = module.weight, module.bias
        if x.ndim != 3 or x.shape[0] != 1 or x.shape[1] > MOST_ROWS or not _suits(weight):
            return linear(x, weight, bias)
        if weight.numel() >= _LARGE:
            return _swapped(x, weight, bias) if x.shape[1] in _SWAPPED else linear(x, weight, bias)
        if turned[0] is not weight or turned[1] != weight._version:
            turned = (weight, weight._version, weight.detach().t().contiguous())
        rows = x[0]
        out = rows.mm(turned[2]) if bias is None else torch.addmm(bias, rows, turned[2])
        return out.unsqueeze(0)

    return forward


def _swapped(x: Any, weight: Any, bias: Any) -> Any:
    out = linear(weight, x[0]).t().contiguous()  # later layers are slow on turned rows
    return (out if bias is None else out.add_(bias)).unsqueeze(0)
