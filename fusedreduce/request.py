"""What may be asked for: devices, dtypes, layouts, implementations; and the key of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fusedreduce.errors import DeviceError, DtypeError, OperandError, OptionError, message
from fusedreduce.pair import LONGEST
from fusedreduce.run import driver
from fusedreduce.trace.closures import TENSORS

#: Is a tensor left over from a transform that has ended?
is_dead = torch._C._functorch.is_dead_tensor_wrapper  # type: ignore[attr-defined]
IMPLEMENTATIONS = (None, "eager", "tiles", "triton", "gluon")


def require_served(values: Mapping[str, Any]) -> None:
    """Every tensor is a plain strided one, of a dtype that is computed with; all on one device."""
    for name, t in values.items():
        if not isinstance(t, torch.Tensor):
            continue
        if t.is_nested or t.layout != torch.strided or t.is_quantized:
            raise OperandError(
                message(
                    f"`{name}` is not a dense tensor",
                    expected="a strided torch.Tensor",
                    came="a nested one" if t.is_nested else f"{t.layout} of {t.dtype}",
                    do=f"convert it: {name}.to_dense(), or {name}.dequantize()",
                )
            )
        if t.is_neg():  # memory holds the values with the other sign
            raise OperandError(
                message(f"`{name}` is a lazily negated view", do=f"pass {name}.resolve_neg()")
            )
        require_dtype(f"`{name}`", t.dtype)
    one_device(values)


def one_device(values: Mapping[str, Any]) -> torch.device:
    devices = {n: v.device for n, v in values.items() if isinstance(v, torch.Tensor)}
    if len(set(devices.values())) > 1:
        raise DeviceError(
            message(
                "the tensors lie on different devices",
                came=", ".join(f"{n} on {d}" for n, d in devices.items()),
                expected="all on one device",
                do="move them: x.to(device)",
            )
        )
    return next(iter(devices.values()), torch.device("cpu"))


def require_dtype(what: str, dtype: Any) -> None:
    """NOTE torch itself computes hardly anything in uint64; int64 would make it negative."""
    served = isinstance(dtype, torch.dtype) and not dtype.is_complex and dtype != torch.uint64
    if not served or (dtype.itemsize == 1 and dtype.is_floating_point):
        raise DtypeError(
            message(
                f"{what} is {str(dtype).removeprefix('torch.')}",
                expected="float16, bfloat16, float32, float64, an integer or bool",
                do="convert it: x.float()",
            )
        )


def require_positions(Sq: int, Sk: int, q_offset: int, k_offset: int) -> None:
    """Kernels have positions, and what masks make of them, in int32."""
    if max(Sq, Sk, abs(q_offset), abs(k_offset)) > LONGEST:
        raise OptionError(
            message(
                "positions of a pair are too large",
                expected=f"lengths and offsets up to {LONGEST}",
                came=f"Sq {Sq}, Sk {Sk}, q_offset {q_offset}, k_offset {k_offset}",
                do="count from nearer by: masks and scores mostly depend on i - j",
            )
        )


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a state is computed in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_impl(impl: str | None) -> None:
    if impl not in IMPLEMENTATIONS:
        raise OptionError(
            message(
                "impl is not an implementation",
                expected=", ".join(map(repr, IMPLEMENTATIONS)),
                came=repr(impl),
            )
        )


def choose(impl: str | None, device: torch.device) -> str:
    """impl=None: Triton on a GPU, tiles elsewhere. A given one is taken, or refused."""
    check_impl(impl)
    if impl is None:
        return "triton" if device.type == "cuda" else "tiles"
    if impl == "gluon":
        raise OptionError(
            message(
                'impl="gluon" of a row reduction',
                expected="a pair: Gluon prints attention on Hopper",
                do='choose impl="triton"',
            )
        )
    if impl == "triton" and device.type != "cuda" and not driver.interpreting():
        raise DeviceError(
            message(
                f'impl="triton" on {device.type} tensors',
                expected="CUDA tensors, or TRITON_INTERPRET=1 in the environment",
                do='move the tensors to a GPU, or choose impl="tiles"',
            )
        )
    return impl


SIMPLE = frozenset((int, bool, str, type(None), torch.dtype))
PLAIN = TENSORS | SIMPLE | {float, tuple, list, dict}


def watched(values: Mapping[str, Any]) -> bool:
    """Does torch look on: a transform, a trace, a dispatch mode, tensors of another make?"""
    return (
        not PLAIN.issuperset(map(type, values.values()))
        and any(isinstance(v, torch.Tensor) and type(v) not in TENSORS for v in values.values())
    ) or looked_on()


def is_odd(t: torch.Tensor) -> bool:
    """Is it nested, a lazily negated view, or left over from a transform that has ended?"""
    return t.is_nested or t.is_neg() or is_dead(t)


def alive(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what is inside tensors that transforms have left over, as torch's operations see them.

    NOTE: such a tensor has no memory of its own.
    """
    if not any(is_dead(v) for v in values.values() if isinstance(v, torch.Tensor)):
        return values
    unwrapped = torch._C._functorch.unwrap_if_dead
    return {n: unwrapped(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}


def looked_on() -> bool:
    """A transform, a trace or a dispatch mode is around the call."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


def refuse_duals(values: Mapping[str, Any], impl: str | None) -> None:
    """NOTE: a printed kernel does not see the tangents of forward_ad.make_dual, and drops them."""
    level: int = torch.autograd.forward_ad._current_level
    if level < 0 or torch._C._functorch.peek_interpreter_stack() is not None:
        return
    if choose(impl, one_device(values)) != "triton":
        return
    for name, v in values.items():
        if isinstance(v, torch.Tensor) and _tangent(v) is not None:
            raise OperandError(
                message(
                    f"`{name}` is a dual tensor, whose tangent a printed kernel does not see",
                    expected="forward mode by torch.func.jvp",
                    do='write torch.func.jvp(function, (x,), (tangent,)), or choose impl="tiles"',
                )
            )


def _tangent(t: torch.Tensor) -> Any:
    return torch.autograd.forward_ad.unpack_dual(t).tangent  # type: ignore[no-untyped-call]


def grads_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that gradients may be asked for; under a transform, whatever can have one."""
    if not torch.is_grad_enabled():
        return ()
    if torch._C._functorch.peek_interpreter_stack() is None:
        return tuple([n for n, v in values.items() if getattr(v, "requires_grad", False)])
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    return tuple(n for n, v in tensors.items() if v.is_floating_point())


def key_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            value.shape, value.stride(), value.dtype, value.device, value.layout, value.is_neg()
        )  # fmt: skip
    if isinstance(value, float):
        return float
    return fixed(value)


def fixed(value: Any) -> Any:
    """What is fixed at tracing, as a key: 1, 1.0 and True are three values, in tuples too."""
    if type(value) in SIMPLE:
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), *map(fixed, value)
    if isinstance(value, dict):
        return dict, *((k, fixed(v)) for k, v in value.items())
    if isinstance(value, torch.Tensor) or getattr(value, "__hash__", None) is None:
        raise OperandError(
            message(
                "an argument that a fused function cannot take",
                expected="tensors, numbers, strings, None; numbers in tuples, lists and dicts",
                came=f"a {type(value).__name__} among them",
                do="pass each tensor as an argument of its own",
            )
        )
    return type(value), repr(value) if isinstance(value, float) else value
