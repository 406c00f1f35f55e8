"""The schedule of a pair kernel: tiles of queries and keys, warps, stages; what is resident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusedreduce.ir.expr import walk
from fusedreduce.pair import Pair
from fusedreduce.plan.device import Device, device
from fusedreduce.plan.rows import BYTES
from fusedreduce.program import widest

Tile = tuple[int, int, int, int]  # queries, keys, warps, stages

HOPPER = (9, 0)
DIRECTIONS = ("forward", "keys", "queries", "tables", "diagonals")
OUTSIDE = {"keys": "key blocks", "tables": "blocks of both", "diagonals": "diagonals of blocks"}


@dataclass(frozen=True)
class PairPlan:
    """How a pair kernel runs.

    direction   "forward"; "keys" (key blocks outside: d k, d v); "queries" (query blocks: d q);
                "tables", "diagonals" (a block of both, a diagonal of them: sums for a table)
    shared      bytes of shared memory that tiles and what is read of tables take, times the stages
    registers   32-bit registers of a thread for score tile, state, accumulators
    descriptors tiles are copied by tensor descriptors: the device has hardware for it
    """

    direction: str
    QUERIES: int
    KEYS: int
    num_warps: int
    num_stages: int
    shared: int
    registers: int
    descriptors: bool = True

    def describe(self) -> str:
        outside = OUTSIDE.get(self.direction, "query blocks")
        tile = f"tiles of {self.QUERIES} queries x {self.KEYS} keys"
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        return f"{outside} outside, {tile}, {self.num_warps} warps, {stages}"


def chunks(width: int) -> tuple[int, ...]:
    """The powers of two that a head dimension is split into; only what is below 16 is padded.

    >>> chunks(128), chunks(80), chunks(72), chunks(1)
    ((128,), (64, 16), (64, 16), (16,))
    """
    left = -(-max(width, 1) // 16) * 16
    found = []
    while left:
        part = 1 << (left.bit_length() - 1)
        found.append(part)
        left -= part
    return tuple(found)


def padded(width: int) -> int:
    return sum(chunks(width))


#: (queries, keys, warps, stages) by direction, in the order they are tried: the first that fits.
#: Measured on an H200 (bf16, tensor descriptors): at 128 wide 64 x 64 with 4 warps runs at 0.8 of
#: cuDNN, two programs on each multiprocessor; eight warps with 128 rows are slower.
_TRIED = {
    "forward": ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1),
                (16, 16, 4, 1)),
    "keys": ((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 8, 2), (32, 64, 8, 2), (32, 32, 4, 1),
             (16, 16, 4, 1)),
    "queries": ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 1), (64, 32, 4, 2), (32, 32, 4, 1),
                (16, 16, 4, 1)),
    "tables": ((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 8, 2), (32, 32, 4, 1), (16, 16, 4, 1)),
}  # fmt: skip
_TRIED["diagonals"] = _TRIED["tables"]  # as many queries as keys
#: Where tiles are read by address, 64 x 64 with 4 warps and two stages may spill (dropout, sm_80).
_BY_ADDRESS = {
    **_TRIED,
    "forward": ((64, 64, 4, 3), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1),
                (16, 16, 4, 1)),
}  # fmt: skip
#: Random weights (dropout) beside wide operands: 64 x 64 fills the registers. Measured on an H200
#: at 128 wide: 3 % faster forward, d q by 10 %, d k and d v by 6 %.
_DRAWN = {
    **_TRIED,
    "forward": ((64, 32, 4, 3), *_TRIED["forward"]),
    "keys": ((32, 64, 4, 3), *_TRIED["keys"]),
    "queries": ((64, 32, 4, 3), *_TRIED["queries"]),
}
DRAWN_WIDTH = 64  # up to which there is room
#: Exact products of float32 and float64 do without tensor cores: whole operand tiles lie in
#: registers. The least spills, read from the compiler at 64 and at 128 wide (sm_90).
_EXACT = {
    "forward": ((32, 32, 8, 1), (16, 16, 4, 1)),
    "keys": ((32, 32, 8, 1), (16, 16, 4, 1)),
    "queries": ((16, 32, 4, 1), (16, 16, 4, 1)),
    "tables": ((32, 32, 8, 1), (16, 16, 4, 1)),
}  # fmt: skip
_EXACT["diagonals"] = _EXACT["tables"]
EXACT_WIDTH = 64  # up to which the first of them is taken
ROOM = 250  # registers of a thread that a plan may count on
WARPS = 8  # that a multiprocessor should hold: programs of four warps come in pairs
FEWEST_KEYS = 1024  # of a row whose keys are split: a second kernel merges the splits
LEAST_KEYS = 256  # of one split
MOST_SPLITS = 16
EXCHANGED = 1024  # bytes at most by which warps reduce rows together
STATES = 32  # keys of a split for one query: states are then a sixteenth of what is read


def plan(
    pair: Pair,
    direction: str,
    capability: tuple[int, int] = HOPPER,
    tile: Tile | None = None,
    exact: bool = False,
) -> PairPlan:
    """The first tile whose operands fit in shared memory and whose values fit in registers.

    tile   (queries, keys, warps, stages): taken as it is
    exact  products without tensor cores
    """
    limits = device(capability)
    lists: Mapping[str, Sequence[Tile]] = _TRIED if capability >= HOPPER else _BY_ADDRESS
    draws = any(n.op == "random" for n in walk(*(e for _, e in pair.operands)))
    if draws and capability >= HOPPER and max(pair.D, pair.DV) > DRAWN_WIDTH:
        lists = _DRAWN
    tried = lists[direction]
    if exact:
        tried = _EXACT[direction][max(pair.D, pair.DV) > EXACT_WIDTH :]
    for queries, keys, warps, stages in (tile,) if tile else tried:
        made = PairPlan(
            direction, queries, keys, warps, stages,
            shared_bytes(pair, direction, queries, keys, stages),
            registers(pair, direction, queries, keys, warps), capability >= HOPPER,
        )  # fmt: skip
        if fits(made, limits):
            return made
    return made


def fits(made: PairPlan, limits: Device) -> bool:
    """NOTE: documents in int64 took 1072 bytes more than the tiles, and so half of the device."""
    shared = (made.shared + EXCHANGED) * beside(made)
    return shared <= limits.shared_bytes and made.registers <= ROOM


def beside(made: PairPlan) -> int:
    """How many programs a multiprocessor should hold."""
    return max(WARPS // made.num_warps, 1)


def splits(made: PairPlan, queries: int, keys: int) -> int:
    """Over how many programs the keys of a block of queries are split: a power of two.

    A function of the lengths alone, whatever the batch: a row's bits do not depend on how many
    others there are. Only one block of queries is worth it, and as many splits as write and read
    again, as states, a sixteenth of what k and v are.

    >>> made = PairPlan("forward", 64, 64, 4, 3, 0, 0)
    >>> [splits(made, queries, 8192) for queries in (1, 16, 32, 64, 65)]
    [16, 16, 8, 4, 1]
    >>> [splits(made, 1, keys) for keys in (1000, 2000, 4096, 131072)]
    [1, 4, 16, 16]
    """
    if keys < FEWEST_KEYS or queries > made.QUERIES:
        return 1
    most = min(MOST_SPLITS, keys // LEAST_KEYS, keys // (STATES * queries))
    return 1 << (max(most, 1).bit_length() - 1)


def shared_bytes(pair: Pair, direction: str, queries: int, keys: int, stages: int) -> int:
    """The outer operands once, the inner ones once a stage; all of them in sums for tables.

    NOTE: a state that is a result has adjoints in its own dtype, and v is widened beside them.
    """
    size, backward = BYTES[pair.dtype], direction != "forward"
    vector = [r.dtype for r in pair.results if r.vector and backward]
    vectors = BYTES[vector[0] if vector else pair.dtype] * padded(pair.DV) * bool(pair.DV)
    by_query = size * padded(pair.D) + vectors * backward
    by_key = size * padded(pair.D) + vectors
    if direction in ("tables", "diagonals"):
        return stages * (by_query * queries + by_key * keys)
    inner, outer = (by_query * queries, by_key * keys)[:: 1 if direction == "keys" else -1]
    read = read_bytes(pair, direction, queries, keys)
    return outer + stages * inner + (stages - 1) * read


def read_bytes(pair: Pair, direction: str, queries: int, keys: int) -> int:
    """Of tables, for one block of the inner axis: the compiler copies these ahead as well."""
    dtypes = {t.name: t.dtype for t in pair.tables}
    sizes = {"element": queries * keys, "row": queries, "column": keys}
    inner = ("element", "row" if direction == "keys" else "column")
    places = [(r.table, widest(map(pair.place, r.indices))) for r in pair.reads]
    return sum(BYTES[dtypes[n]] * sizes[place] for n, place in places if place in inner)


def registers(pair: Pair, direction: str, queries: int, keys: int, warps: int) -> int:
    """Of one thread: score tiles in float32 and in the operands' dtype, accumulators, addresses."""
    wide = 2 if pair.state == "float64" else 1
    half = BYTES[pair.dtype] / 4
    tile = queries * keys
    if direction == "forward":
        numbers = tile * (wide + half) + queries * padded(pair.DV) * wide * bool(pair.DV)
    elif direction == "keys":
        widths = padded(pair.D) + padded(pair.DV) * bool(pair.DV)
        numbers = tile * (2 * wide + half) + keys * widths * wide
    elif direction in ("tables", "diagonals"):
        numbers = tile * 3 * wide
    else:
        numbers = tile * (2 * wide + half) + queries * padded(pair.D) * wide
    return int(numbers / (32 * warps)) + 40
