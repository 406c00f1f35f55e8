"""The only door to Triton: its version, its builds, its descriptors and its launcher."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fusedreduce.errors import BackendError, message


def triton_version() -> str:
    """The installed Triton's version; BackendError when there is none."""
    try:
        import triton
    except ImportError as error:
        raise BackendError(
            message(
                "Triton is not installed",
                expected="triton >= 3.6",
                do='install it, or choose impl="tiles" or impl="eager"',
            )
        ) from error
    return str(triton.__version__)


@lru_cache(maxsize=1)
def _descriptor_type() -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor


def tensor_descriptor(
    base: torch.Tensor, shape: list[int], strides: list[int], block: list[int]
) -> Any:
    """Blocks of a tensor as the hardware copies them.

    NOTE: without the checks of its constructor (4 us of 7): `descriptors.served` made them.
    """
    kind = _descriptor_type()
    made = kind.__new__(kind)
    made.base, made.shape, made.strides, made.block_shape = base, shape, strides, block
    return made


def compiled(
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    aligned: Sequence[str],
    options: Mapping[str, int],
    capability: int,
) -> Any:
    """A kernel built ahead of time for an NVIDIA architecture, 90 for sm_90; no GPU is needed.

    aligned   the arguments that are multiples of 16
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    order = {name: k for k, name in enumerate(function.arg_names)}
    source = ASTSource(
        function,
        {**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs=dict(constants),
        attrs={(order[n],): [["tt.divisibility", 16]] for n in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))


def reading_tool() -> Path:
    """The program that reads machine code, as it comes with Triton."""
    import triton.backends.nvidia as nvidia

    return Path(nvidia.__file__).parent / "bin" / "cuobjdump"


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


# ---- launching ----------------------------------------------------------------------------------


class Straight:
    """A build of Triton 3.6, launched without what Triton does anew at every launch.

    `build[grid]` asks for device and stream, makes two closures, gathers what hooks may want to
    know and encodes each tensor descriptor again: 15 of the 21 us that a launch of attention takes
    on the host of an H200. The launcher that is called in the end is Triton's own.
    """

    def __init__(self, build: Any) -> None:
        import triton.backends.nvidia.driver as nvidia
        from triton import knobs

        run = build.run
        self.launcher, self.metas = run.launch, build.metadata.tensordesc_meta or ()
        if self.metas:
            self.launcher = inspect.getclosurevars(run.launch).nonlocals["launcher"]
        self.function, self.knobs = build.function, knobs.runtime
        self.hooks = knobs.runtime.launch_enter_hook
        # cooperative grid, launch early, two scratch memories, metadata, and three for hooks
        self.fixed = (
            run.launch_cooperative_grid, run.launch_pdl, None, None, build.packed_metadata,
            None, None, None,
        )  # fmt: skip
        self.encode = nvidia.make_tensordesc_arg

    def __call__(self, programs: int, device: int, given: Sequence[Any]) -> None:
        """given   addresses, numbers, and descriptors as `encoded`"""
        stream = torch._C._cuda_getCurrentRawStream(device)
        self.launcher(programs, 1, 1, stream, self.function, *self.fixed, *given)

    @property
    def is_free(self) -> bool:
        """Does nobody wait for launches?"""
        hooks = self.knobs.launch_enter_hook
        return hooks is self.hooks and not hooks.calls

    def encoded(self, which: int, descriptor: Any) -> list[Any]:
        """A tensor descriptor as arguments of the launcher: its encoding, shape and strides."""
        found: list[Any] = self.encode(descriptor, self.metas[which])
        return found


def straight(build: Any) -> Straight | None:
    """None where Triton's own way is taken: other versions, builds that want scratch memory."""
    if not triton_version().startswith("3.6."):
        return None
    run = build.run
    if run.global_scratch_size or run.profile_scratch_size or run.num_ctas != 1:
        return None
    return Straight(build)


def launcher(build: Any, grid: tuple[int, int, int], device: int | None) -> Callable[..., None]:
    """What launches a build that reads by addresses alone, from its arguments."""
    ordinary, shortcut = build[grid], straight(build)
    if shortcut is None or device is None:
        return ordinary  # type: ignore[no-any-return]

    def run(*given: Any) -> None:
        if shortcut.is_free:
            shortcut(grid[0], device, given)
        else:
            ordinary(*given)

    return run
