"""The ways to run an original model, against which bundles are timed. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

from fuseconv.errors import UsageError

WAYS = ("eager", "compile")
"""The ways to run the original model: in eager mode, and compiled by torch.compile."""

PEERS = (*WAYS, "aoti")
"""The peers: the original model in eager mode, the original model compiled by torch.compile, and the captured program
compiled by AOTInductor."""


def peers_of(wanted: Sequence[str]) -> tuple[str, ...]:
    """Validates the names of peers, and returns the names without duplicates.

    Raises:
        UsageError: a name is not the name of a peer.
    """
    for name in wanted:
        if name not in PEERS:
            fix = f"use one or more of {', '.join(PEERS)}"
            raise UsageError(f"unknown peer {name!r}", where=f"--not-slower-than {name}", fix=fix)
    return tuple(dict.fromkeys(wanted))
