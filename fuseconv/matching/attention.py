"""Finds attention, however a model writes it: softmax(scores) @ v, where the scores are a scaled and masked q @ k.T.

Any number of steps, such as scaling, biasing and masking, may follow the product of queries and keys, in any order.
scores.py reads these steps, and attention_call.py creates the call that replaces the whole attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.matching.attention_call import attention_call, heads_of, widening
from fuseconv.matching.graph import arguments, is_call, op_name
from fuseconv.matching.match import Candidate, Match, check_apart, check_users, settle
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.scores import PRODUCTS, VIEWS, Scores, Step, read_scores
from fuseconv.matching.search import Index
from fuseconv.rulebook.attention_functions import FLASH_WIDEST
from fuseconv.rulebook.predicates import divides, is_floating, rank, same_kind, same_shape
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import Rule

SAFE = "aten._safe_softmax.default"
"""The softmax that returns 0 instead of NaN in rows whose scores are all -inf."""

_SOFTMAX = ("aten.softmax.int", SAFE)


def attention(index: Index, rule: Rule) -> Iterator[Match | NearMiss]:
    """Yields, for each softmax in the graph, a match if it belongs to attention, or a near miss if it nearly does."""
    for op in [op for op in index.calls if str(op) in _SOFTMAX]:
        for softmax in index.calls[op]:
            yield from _at(index, rule, softmax)


def _at(index: Index, rule: Rule, softmax: Node) -> Iterator[Match | NearMiss]:
    last, found = _to_values(softmax), 2
    dim, axes = arguments(softmax)["dim"], softmax.meta["val"].dim()
    try:
        scores = read_scores(softmax.all_input_nodes[0])
        found += len(scores.nodes)
        if dim % axes != axes - 1:
            words = (f"dim of {op_name(softmax.target)} to be -1", str(dim))
            yield NearMiss(rule, softmax, softmax, found, found + 1, lambda: words)
            return
        if last is None:
            users = ", ".join(op_name(user.target) for user in softmax.users)
            raise Refused("weights that are used only by the product with the values", f"the users {users}")
        yield _match(index, rule, scores, softmax, last)
    except Refused as problem:
        if last is not None or found > 2:
            yield NearMiss(rule, softmax, problem.at or softmax, found, found + 1, problem.words, refused=True)


def _to_values(softmax: Node) -> tuple[Node, ...] | None:
    """Returns the ops after a softmax: dtype conversions and views, then the matrix product of weights and values.

    Returns None if no such product follows, or if the softmax or an op before the product has other users.
    """
    chain: list[Node] = [softmax]
    while len(chain) < 4 and len(chain[-1].users) == 1:
        (user,) = chain[-1].users
        name = op_name(user.target) if is_call(user) else ""
        if name in PRODUCTS:
            return (*chain[1:], user) if user.args[0] is chain[-1] and user.args[1] is not chain[-1] else None
        if name != "aten.to.dtype" and name not in VIEWS:
            return None
        chain.append(user)
    return None


def _match(index: Index, rule: Rule, scores: Scores, softmax: Node, last: tuple[Node, ...]) -> Match:
    """Returns the match that replaces scores, their softmax and the product with the values by one attention call.

    Raises:
        Refused: the matched nodes may not be replaced, for example because attention cannot express a step.
    """
    *between, end = last
    values = end.all_input_nodes[1]
    wide = [widening(one, values.meta["val"].dtype) for one in (scores.left, scores.right)]
    matched = frozenset((*scores.nodes, softmax, *last, *(wide[0] + wide[1] if all(wide) else ())))
    check_users(matched, frozenset({end}))
    # A softmax along the last axis commutes with a view that preserves this axis.
    for node in between:
        scores = scores.then(Step("view", node)) if op_name(node.target) in VIEWS else scores
    _check_operands(index, scores, values, (softmax, *between)[-1])
    _check_width(scores, values)
    captures, lines = attention_call(index.workspace, scores, values, safe=op_name(softmax.target) == SAFE)
    found = Candidate(rule, matched, captures, {"o": end})
    check_apart(index, matched, captures, found.results)
    return settle(index, found, lines)


def _check_width(scores: Scores, v: Node) -> None:
    """Refuses attention between channels: heads wider than any fast kernel takes, with fewer keys than columns.

    One kernel would save writing the scores, but these are smaller than the queries, keys and values.
    """
    width, keys = scores.left.meta["val"].shape[-1], v.meta["val"].shape[-2]
    if isinstance(keys, int) and (not isinstance(width, int) or (width > FLASH_WIDEST and keys < width)):
        raise Refused(f"at most {FLASH_WIDEST} columns, or more keys than columns", f"{keys} keys of {width} columns")


def _check_operands(index: Index, scores: Scores, v: Node, weights: Node) -> None:
    """Checks that queries, keys and values have the same dtype, rank and leading axes, and raises `Refused` otherwise.

    Unlike matrix products, attention does not broadcast the leading axes.
    """
    constants, operands = index.workspace, (scores.left, scores.right, v)
    is_floating(constants, *operands)
    if not all(widening(one, v.meta["val"].dtype) for one in (scores.left, scores.right)):
        same_kind(constants, *operands)
    elif plain := [step for kind in ("view", "factor", "divisor") for step in scores.of(kind)]:
        raise Refused(f"queries and keys of the dtype of {text_of(v)}", text_of(scores.left), at=plain[0].node)
    heads = heads_of(scores, v)
    if len({rank(constants, one) for one in operands[: 2 if heads else 3]}) > 1 or rank(constants, v) < 2:
        raise Refused("queries, keys and values of the same rank", ", ".join(map(text_of, operands)))
    q, k, w = (one.meta["val"].shape[:-2] for one in operands)
    q, k = (k, q) if scores.turned else (q, k)
    if heads and same_sizes(q, k):
        unfolded = heads.node.meta["val"].shape[:-2]
        q, k, w = unfolded, unfolded, unfolded if same_sizes(k, w) else w
    if not same_sizes(k, w) or not same_sizes(q[:-1], k[:-1]):
        raise Refused("queries, keys and values of the same batch", ", ".join(map(text_of, operands)))
    if len(q):
        divides(constants, k[-1], q[-1])
    if not scores.turned:
        same_shape(constants, heads.node if heads and rank(constants, v) == 4 else scores.product, weights)
