"""CrossEntropyLoss and KLDivLoss: torch.nn's arguments, state dicts and values."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr


@pytest.mark.parametrize(
    "options",
    [{}, {"weight": torch.rand(6)}, {"reduction": "sum", "label_smoothing": 0.1},
     {"ignore_index": 3, "reduction": "none"}],
    ids=str,
)  # fmt: skip
def test_cross_entropy(options: dict) -> None:
    x, target = torch.randn(5, 6), torch.arange(5)
    ours, theirs = fr.nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    assert isinstance(ours, torch.nn.CrossEntropyLoss)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(ours.state_dict())


def test_its_own_options() -> None:
    x, target = torch.randn(5, 6), torch.arange(5)
    options = dict(z_loss=0.1, return_z_loss=True, softcap=2.0, logit_scale=0.5)
    module = fr.nn.CrossEntropyLoss(torch.rand(6), **options)
    got = module(x, target)
    assert got == fr.ops.cross_entropy(x, target, module.weight, **options)


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "batchmean"])
def test_kl_div(log_target: bool, reduction: str) -> None:
    q, p = (torch.log_softmax(torch.randn(5, 6), -1) for _ in "qp")
    p = p if log_target else p.exp()
    ours = fr.nn.KLDivLoss(reduction=reduction, log_target=log_target)
    theirs = torch.nn.KLDivLoss(reduction=reduction, log_target=log_target)
    torch.testing.assert_close(ours(q, p), theirs(q, p))


@pytest.mark.parametrize("module", [fr.nn.CrossEntropyLoss, fr.nn.KLDivLoss])
def test_impl_is_passed_on(module: type) -> None:
    with pytest.raises(fr.errors.OptionError, match="impl"):
        module(impl="fast")(torch.randn(2, 3), torch.rand(2, 3))
