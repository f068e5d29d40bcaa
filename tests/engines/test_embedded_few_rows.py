"""Linear layers over a few rows: the same numbers, and nothing of it is left on the model afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines import few_rows  # noqa: E402
from drivetrain.engines.few_rows import FewRows  # noqa: E402


class Doubled(torch.nn.Linear):  # type: ignore[misc]
    """Somebody's own layer."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


@pytest.fixture
def layers() -> Any:
    torch.manual_seed(0)
    made = torch.nn.ModuleList([torch.nn.Linear(24, 40), torch.nn.Linear(24, 40, bias=False), Doubled(24, 40)])
    return made.requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 64, 65, 200])
def test_the_numbers_are_the_same(layers: Any, rows: int) -> None:
    x = torch.randn(1, rows, 24)
    plain = [layer(x) for layer in layers]
    with FewRows(layers).used():
        for layer, expected in zip(layers, plain, strict=True):
            out = layer(x)
            assert (out.shape, out.is_contiguous()) == (expected.shape, True)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_only_few_rows_take_another_way(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Any] = []
    linear = few_rows.linear
    monkeypatch.setattr(few_rows, "linear", lambda x, *rest: (plain.append(tuple(x.shape)), linear(x, *rest))[1])
    with FewRows(layers).used():
        for shape in ((1, 8, 24), (1, 1, 24), (1, 65, 24), (2, 8, 24), (8, 24)):
            layers[0](torch.randn(shape))
    assert plain == [(1, 65, 24), (2, 8, 24), (8, 24)]


def test_a_large_layer_is_not_copied(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "_LARGE", 24 * 40)
    first: list[Any] = []
    linear = few_rows.linear
    monkeypatch.setattr(few_rows, "linear", lambda a, *rest: (first.append(a), linear(a, *rest))[1])
    for rows in (1, 8):
        x = torch.randn(1, rows, 24)
        expected = layers[0](x)
        with FewRows(layers).used():
            torch.testing.assert_close(layers[0](x), expected, rtol=1e-5, atol=1e-6)
    assert [a is layers[0].weight for a in first] == [False, True]


def test_the_model_is_as_before(layers: Any) -> None:
    def own(_: Any) -> str:
        return "mine"

    layers[1].forward = own
    few = FewRows(layers)
    with pytest.raises(ZeroDivisionError), few.used():
        assert [("forward" in layer.__dict__) for layer in layers] == [True, True, False]
        assert layers[1](torch.randn(1, 8, 24)) == "mine"
        raise ZeroDivisionError
    assert [layer.__dict__.get("forward") for layer in layers] == [None, own, None]


def test_copies_follow_their_weights(layers: Any) -> None:
    few, x = FewRows(layers), torch.randn(1, 8, 24)

    def right() -> None:
        expected = torch.nn.functional.linear(x, layers[1].weight)
        with torch.inference_mode(), few.used():
            torch.testing.assert_close(layers[1](x), expected)

    right()
    layers[1].weight = torch.nn.Parameter(torch.ones(40, 24), requires_grad=False)
    right()
    layers[1].load_state_dict({"weight": torch.randn(40, 24)})
    right()
    weight = layers[1].weight.requires_grad_()
    weight.grad = torch.randn(40, 24)
    torch.optim.AdamW([weight], lr=0.1).step()
    right()
    layers[1].to(torch.bfloat16)
    with few.used():
        assert layers[1](x.to(torch.bfloat16)).dtype == torch.bfloat16


def test_bf16_layers_are_left_alone(layers: Any) -> None:
    few = FewRows(layers.to(torch.bfloat16))
    with few.used():
        assert not any("forward" in layer.__dict__ for layer in layers)
