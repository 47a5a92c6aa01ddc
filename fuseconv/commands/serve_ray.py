"""`fuseconv serve`: serves bundles with replicas on Ray Serve."""

from __future__ import annotations

import time

from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.served import How, introduce
from fuseconv.processes.extras import needs_extra


def serve_on_ray(how: How, replicas: int, gpus: float) -> Outcome:
    """Serves on Ray Serve until SIGTERM or SIGINT, and returns the running time. Raises Ray's exceptions.

    The address is taken before Ray starts, so that a port in use is an error at once.

    Args:
        how: the settings of the server.
        replicas: the number of processes that run the models.
        gpus: the number of GPUs that each replica reserves, such as 0.5.
    """
    with shown("ray"), needs_extra("ray", ", or add --local to serve from this process"):
        from fuseconv.serving import on_ray, server

    arguments = on_ray.Arguments(
        bundles={name: path.absolute() for name, path in how.bundles.items()},
        target=how.target,
        replicas=replicas,
        gpus=gpus,
        max_batch=how.max_batch,
        delay=how.delay,
        workers=how.workers,
        queue=how.queue,
        timeout=how.timeout,
        max_body=how.max_body,
        warm_seconds=how.warm_up,
        signer=how.signer and how.signer.absolute(),
    )
    listener, begun = server.listen(how.host, how.port), time.monotonic()
    models = dict.fromkeys(how.bundles, f"{replicas} replicas on Ray Serve")
    on_ray.run(arguments, listener, lambda: introduce(server.address(listener), how.host, models))
    seconds = round(time.monotonic() - begun, 3)
    return Outcome({"seconds": seconds}, lambda console: console.print(f"served for {seconds:.1f} s", highlight=False))
