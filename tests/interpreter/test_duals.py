"""Tangents of torch.autograd.forward_ad: seen, or refused; never dropped."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import fusedreduce as fr
from fusedreduce.errors import OperandError


def test_a_printed_kernel_refuses_what_it_does_not_see() -> None:
    x, tangent = torch.randn(3, 5), torch.randn(3, 5)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        with pytest.raises(OperandError, match=r"torch\.func\.jvp"):
            fr.ops.softmax(dual, -1, impl="triton")
        found = forward_ad.unpack_dual(fr.ops.softmax(dual, -1, impl="tiles")).tangent
        plain = fr.ops.softmax(x, -1, impl="triton")
    torch.testing.assert_close(plain, torch.softmax(x, -1))
    _, right = torch.func.jvp(lambda x: fr.ops.softmax(x, -1, impl="triton"), (x,), (tangent,))
    torch.testing.assert_close(found, right)


def test_attention_refuses_them_too() -> None:
    q = torch.randn(1, 1, 4, 16)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        with pytest.raises(OperandError, match="`q` is a dual tensor"):
            fr.attention(dual, q, q, impl="triton")
