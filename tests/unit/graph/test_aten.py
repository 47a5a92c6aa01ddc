"""The properties of ops, compared with the behavior of torch's ops on tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

from fuseconv.graph.aten import _COMMUTATIVE, _CONVERTS, _ELEMENTWISE, _METADATA_ONLY, _ORDERS, _STATISTICS, facts
from fuseconv.untrusted.permitted import lookup

ATEN = torch.ops.aten


def op_of(name: str) -> OpOverload[..., Any]:
    found = lookup(name)
    assert found is not None, name
    return found


X = torch.arange(2.0, 26.0).reshape(4, 6)
INDEX = torch.tensor([[1, 0, 2, 3, 1, 0]])
MOVES = {
    "_reshape_alias.default": ([3, 8], [8, 1]),
    "_to_copy.default": (),
    "_unsafe_view.default": ([3, 8],),
    "alias.default": (),
    "chunk.default": (2,),
    "clone.default": (),
    "contiguous.default": (),
    "detach.default": (),
    "detach_.default": (),
    "diagonal.default": (),
    "expand.default": ([2, 4, 6],),
    "expand_as.default": (torch.zeros(2, 4, 6),),
    "flatten.using_ints": (),
    "flip.default": ([0],),
    "gather.default": (0, INDEX),
    "index.Tensor": ([INDEX[0]],),
    "index_select.default": (0, INDEX[0]),
    "lift_fresh.default": (),
    "narrow.default": (0, 1, 2),
    "permute.default": ([1, 0],),
    "repeat.default": ([2, 1],),
    "repeat_interleave.self_int": (2,),
    "reshape.default": ([3, 8],),
    "reshape_as.default": (torch.zeros(3, 8),),
    "roll.default": ([1],),
    "select.int": (0, 1),
    "slice.Tensor": (0, 1),
    "split.Tensor": (2,),
    "split_with_sizes.default": ([1, 3],),
    "squeeze.default": (),
    "t.default": (),
    "to.dtype": (torch.float64,),
    "transpose.int": (0, 1),
    "type_as.default": (torch.zeros(1, dtype=torch.float64),),
    "unbind.int": (),
    "unflatten.int": (1, [2, 3]),
    "unfold.default": (0, 2, 1),
    "unsafe_chunk.default": (2,),
    "unsafe_split.Tensor": (2,),
    "unsafe_split_with_sizes.default": ([1, 3],),
    "unsqueeze.default": (0,),
    "view.default": ([3, 8],),
    "view_as.default": (torch.zeros(3, 8),),
}
"""Ops that move the elements of one tensor, with their other operands."""


def tensors(value: object) -> list[Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def test_every_op_that_moves_elements_is_tried() -> None:
    tried = {name.partition(".")[0] for name in MOVES}
    assert tried | {"cat", "stack"} == set(_ORDERS)


@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_is_an_element_of_the_operand_where_the_order_says(name: str) -> None:
    known = facts(op_of(f"aten.{name}"))
    x = X.clone()
    results = tensors(op_of(f"aten.{name}")(x, *MOVES[name]))
    assert known.moved == "self"
    assert all(torch.isin(one, X).all() for one in results)
    if known.order == "same":
        assert all(torch.equal(one, X.expand(one.shape).to(one.dtype)) for one in results)
    elif known.order == "row-major":
        assert all(torch.equal(one.reshape(-1), X.reshape(-1)) for one in results)


@pytest.mark.parametrize("op", [ATEN.cat.default, ATEN.stack.default])
def test_what_is_joined_is_moved_from_a_list(op: OpOverload) -> None:
    assert facts(op).moved == "tensors"
    assert torch.isin(op([X, -X]), torch.cat([X, -X])).all()


@pytest.mark.parametrize("name", MOVES)
def test_what_shares_memory_says_so(name: str) -> None:
    op = op_of(f"aten.{name}")
    x = X.clone()
    results = tensors(op(x, *MOVES[name]))
    shares = any(one.untyped_storage()._cdata == x.untyped_storage()._cdata for one in results)
    assert not shares or "self" in facts(op).shares


def test_a_copy_of_a_view_moves_too_and_what_only_has_its_name_does_not() -> None:
    assert facts(ATEN.slice_copy.Tensor).moved == facts(ATEN.lift_fresh_copy.default).moved == "self"
    for op in (ATEN.index_copy.default, ATEN.view.dtype, ATEN.view_copy.dtype, ATEN.repeat_interleave.Tensor):
        assert facts(op).moved == ""


@pytest.mark.parametrize("name", sorted(_COMMUTATIVE))
def test_what_commutes_gives_the_same_of_exchanged_operands(name: str) -> None:
    op = op_of(name)
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 7, generator=generator)
    if "bitwise" in name:
        one, other = (10 * one).long(), (10 * other).long()
    assert facts(op).commutative
    assert torch.equal(op(one.clone(), other.clone()), op(other.clone(), one.clone()))


@pytest.mark.parametrize("name", sorted(_ELEMENTWISE))
def test_elementwise_ops_are_listed_only_where_torch_does_not_tag_them(name: str) -> None:
    op = op_of(f"aten.{name}.default")
    assert torch.Tag.pointwise not in op.tags
    whole = op(X)
    assert all(torch.equal(op(X[at]), whole[at]) for at in range(len(X)))


@pytest.mark.parametrize(
    "op", [ATEN.softmax.int, ATEN.sum.default, ATEN.cumsum.default, ATEN.permute.default, ATEN.mm.default]
)
def test_what_reads_other_places_is_not_elementwise(op: OpOverload) -> None:
    assert not facts(op).elementwise


@pytest.mark.parametrize("name", sorted(_STATISTICS.keys() - {"cudnn_batch_norm", "miopen_batch_norm"}))
def test_norms_update_the_statistics_that_they_are_given_where_their_argument_says(name: str) -> None:
    op = op_of(f"aten.{name}.default")
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    for trains in (True, False):
        given: dict[str, Any] = {
            "weight": torch.ones(3),
            "bias": torch.zeros(3),
            "momentum": 0.5,
            "eps": 1e-5,
            "cudnn_enabled": False,
        }
        given |= {"running_mean": torch.zeros(3), "running_var": torch.ones(3), facts(op).statistics: trains}
        names = [argument.name for argument in op._schema.arguments]
        op(x, **{key: value for key, value in given.items() if key in names})
        assert bool(given["running_mean"].any()) is trains
    assert facts(op).writes == ()


@pytest.mark.parametrize("name", sorted(_METADATA_ONLY))
def test_what_reads_only_metadata_takes_no_memory(name: str) -> None:
    x = torch.empty(4, 6, device="meta")
    packet = getattr(ATEN, name)
    given = {"new_empty": ([2],), "new_ones": ([2],), "new_zeros": ([2],), "new_full": ([2], 1.0), "full_like": (1.0,)}
    given |= {"sym_size": (0,), "sym_stride": (0,)}
    packet(x, *given.get(name, ()))
    assert all(facts(getattr(packet, overload)).metadata_only for overload in packet.overloads())


@pytest.mark.parametrize("name", ["_to_copy", "to", "type_as", "copy_"])
def test_what_converts_makes_integers_of_floats(name: str) -> None:
    whole = torch.zeros(2, dtype=torch.int64)
    half = torch.tensor([0.5, 1.5])
    calls = {"_to_copy": lambda: ATEN._to_copy(half, dtype=torch.int64), "to": lambda: ATEN.to.dtype(half, torch.int64)}
    calls |= {"type_as": lambda: ATEN.type_as(half, whole), "copy_": lambda: ATEN.copy_(whole, half)}
    assert name in _CONVERTS
    assert calls[name]().tolist() == [0, 1]


def test_what_draws_gives_other_numbers_on_the_next_call() -> None:
    for op, args in ((ATEN.dropout.default, (torch.ones(64), 0.5, True)), (ATEN.rand_like.default, (torch.ones(64),))):
        assert facts(op).draws
        assert not torch.equal(op(*args), op(*args))
    assert not facts(ATEN.relu.default).draws


@pytest.mark.parametrize("name", ["relu_.default", "add_.Tensor", "hardswish_.default", "pow_.Scalar"])
def test_the_functional_op_gives_what_is_written(name: str) -> None:
    op = op_of(f"aten.{name}")
    twin = facts(op).functional
    rest = {"add_.Tensor": (torch.ones(4, 6),), "pow_.Scalar": (2,)}.get(name, ())
    x = X.clone()
    assert twin is not None
    assert (facts(op).writes, facts(twin).writes) == (("self",), ())
    expected = twin(X, *rest)
    op(x, *rest)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("op", "positions"),
    [
        (ATEN.embedding.default, ("indices",)),
        (ATEN.gather.default, ("index",)),
        (ATEN.repeat_interleave.self_Tensor, ("repeats",)),
        (ATEN.add.Tensor, ()),
        (ATEN.roll.default, ()),
    ],
)
def test_arguments_of_indices_and_counts_are_told_by_their_names(op: OpOverload, positions: tuple[str, ...]) -> None:
    assert facts(op).positions == positions
