"""`fuseconv verify`: verifies the parity of a bundle on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.bundle.named_targets import check_named
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import (
    against_option,
    bundle_argument,
    json_option,
    model_options,
    named_targets,
    reading,
    signer_option,
)
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option, verbose_option
from fuseconv.errors import UsageError
from fuseconv.processes.extras import needs_extra
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@bundle_argument
@method_option
@against_option("the outputs of the original that are stored in the bundle")
@named_targets("those of the bundle")
@click.option(
    "--all-runtimes", is_flag=True, help="Check every available runtime: Python and C++, with and without CUDA graphs."
)
@click.option("--build-runtime", is_flag=True, help="With --all-runtimes: build fuseconv-run if it is not found.")
@click.option(
    "--server",
    metavar="URL",
    help="Verify the outputs of this KServe v2 server instead: http://HOST:PORT or grpc://HOST:PORT.",
)
@click.option(
    "--served-as",
    metavar="NAME",
    help="With --server: name of the model on the server. [default: the name of the bundle]",
)
@signer_option
@model_options
@verbose_option
@quiet_option
@json_option
def verify(
    bundle: Path,
    method: str | None,
    against: Path | None,
    target: tuple[str, ...],
    all_runtimes: bool,
    build_runtime: bool,
    server: str | None,
    served_as: str | None,
    signer: Path | None,
    verbose: bool,
    **source: Any,
) -> Outcome:
    """Prove BUNDLE's parity again: compare every target, case and output with the original and with float64.

    The options for reading a model apply to the model of --against. fuseconv-run is the program of the C++ runtime. It
    is found through the environment variable FUSECONV_RUN, on the PATH, or where --build-runtime built it.
    """
    options, whole, bundle = reading(**source), bundle, chosen(bundle, method)
    options.require_original(against)
    if build_runtime and not all_runtimes:
        raise UsageError("--build-runtime needs --all-runtimes", where="--build-runtime", fix="add --all-runtimes")
    if served_as is not None and server is None:
        raise UsageError("--served-as needs --server", where="--served-as", fix="add --server URL")
    if server is not None and (all_runtimes or against is not None or target):
        other = "--all-runtimes" if all_runtimes else "--against" if against is not None else "--target"
        what = f"--server cannot be combined with {other}"
        raise UsageError(what, where="--server", fix=f"run the command twice, once with --server and once with {other}")
    check_named(read_manifest(bundle), target, bundle)

    if signer is not None:
        from fuseconv.provenance.signature import verify_signature

        verify_signature(whole, signer)

    keep_freed()
    with imports():
        from fuseconv.commands import results
        from fuseconv.pipeline.verify import verify as verify_bundle
        from fuseconv.pipeline.verify import verify_runtimes

    if server is not None:
        with needs_extra("serve"):
            from fuseconv.pipeline.verify_server import verify_server

    if all_runtimes:
        matrix = verify_runtimes(
            bundle, against=against, target=target, options=options, build_runtime=build_runtime, progress=shown
        )

        def render(console: Console) -> None:
            results.print_matrix(console, matrix)
            if verbose:
                console.print()
                results.print_parity(console, matrix.report(), everything=True)

        return _signed(Outcome(matrix.to_json(), render, matrix.error(str(bundle))), signer)
    if server is None:
        found = verify_bundle(bundle, against=against, target=target, options=options, progress=shown)
    else:
        with needs_extra("grpc" if server.startswith("grpc:") else "serve"):
            found = verify_server(bundle, server, served_as, progress=shown)
    outcome = Outcome(
        found.to_json(),
        lambda console: results.print_parity(console, found, everything=verbose),
        found.error(str(bundle)),
    )
    return _signed(outcome, signer)


def _signed(outcome: Outcome, signer: Path | None) -> Outcome:
    """Adds to an outcome that the signature is valid. An invalid signature has raised an error before."""
    if signer is None:
        return outcome

    def render(console: Console) -> None:
        outcome.render(console)
        console.print(f"\nsignature: the holder of {signer} has signed every file", highlight=False, markup=False)

    return replace(outcome, result={**outcome.result, "signature": "ok"}, render=render)
