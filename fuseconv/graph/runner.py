"""Runs a graph node by node, with less overhead than torch's interpreter."""

from __future__ import annotations

from typing import Any

from torch.fx import Interpreter, Node, map_arg


class Runner(Interpreter):
    """A variant of `torch.fx.Interpreter` without the progress bar, logs and annotated errors.

    For a small op, these features would take longer than the op itself.
    """

    def run(self, *operands: Any) -> Any:  # type: ignore[override]  # no options
        """Runs the graph and returns its output.

        Args:
            operands: the values of the placeholders, in order.
        """
        env = self.env = {}
        self.args_iter = iter(self.graph.process_inputs(*operands))
        for node in self.graph.nodes:
            env[node] = self.run_node(node)
            for used in self.user_to_last_uses.get(node, ()):
                del env[used]
            if node.op == "output":
                return self.graph.process_outputs(env[node])
        return None

    def run_node(self, n: Node) -> Any:
        """Runs a node and returns its value."""
        args, kwargs = map_arg((n.args, n.kwargs), self.env.__getitem__)
        return getattr(self, n.op)(n.target, args, kwargs)
