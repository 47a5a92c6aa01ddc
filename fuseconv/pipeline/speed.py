"""Times the finished bundle against other ways to run its model (peers), and rejects a bundle that is slower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuseconv.errors import FuseconvError, SlowerError, UpstreamError
from fuseconv.measure.peers import Versus, against_peers
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.filling import Filling
from fuseconv.sources import Options

AOTI = "aoti"
"""The name of a peer and of a target. The peer is the target's artifact without fusions."""


def check_speed(
    filling: Filling, peers: Sequence[str], model: Path, options: Options, unfused: Path, progress: Progress
) -> tuple[Versus, ...]:
    """Times the fastest target of a sealed bundle against peers.

    Args:
        filling: the sealed bundle to time.
        peers: the names of the peers.
        model: the path of the original model.
        options: how to read the model.
        unfused: the folder of a bundle with the unfused artifact of `aoti`. If this bundle is required for the peer
            `aoti` and the folder does not exist, this function writes the bundle.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        One comparison per peer, in the order of the peers.

    Raises:
        SlowerError: the bundle is slower than a peer by more than the noise.
        UpstreamError: a peer cannot be run.
    """
    if AOTI in peers and not unfused.exists():
        if AOTI in filling.written and not filling.plan.of(AOTI).applied:
            unfused = filling.folder  # the bundle's own artifact of this target is unfused
        else:
            with progress(f"write {AOTI} unfused"):
                _write_unfused(filling, unfused)
    with progress("time the peers"):
        found = against_peers(filling.folder, peers, model, options, filling.gate.reference, unfused)
    if lost := [one for one in found if one.loses]:
        times = "; ".join(f"{one.target} takes {one.us:.1f} us, {one.peer} {one.peer_us:.1f} us" for one in lost)
        raise SlowerError(
            f"the bundle is slower than {', '.join(one.peer for one in lost)}: {times}",
            where=str(model),
            fix="leave out slow fusions with --tune full or --no-rule, or remove the peer from --not-slower-than",
            rows=found,
        )
    return tuple(found)


def _write_unfused(filling: Filling, folder: Path) -> None:
    """Writes a bundle with the `aoti` target of the captured program, without fusions, and verifies it.

    Raises:
        UpstreamError: writing or running the artifact fails.
    """
    folder.mkdir()
    try:
        _, found = filling.gate.write(folder, (AOTI,), filling.assembly.program)
        if (failed := found[AOTI].error) is not None:
            raise failed
    except FuseconvError as error:
        raise UpstreamError(
            f"the peer {AOTI} cannot be timed: {error.what}",
            where=f"--not-slower-than {AOTI}",
            fix=f"correct what the message names, or remove {AOTI} from --not-slower-than",
        ) from error
