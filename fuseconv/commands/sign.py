"""`fuseconv sign`: signs a bundle with a private key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.commands.completion import PATH
from fuseconv.commands.options import bundle_argument, existing, json_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.extras import needs_extra

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@bundle_argument
@click.option(
    "--key", type=PATH, required=True, metavar="FILE", callback=existing, help="Private ECDSA key, in PEM format."
)
@quiet_option
@json_option
def sign(bundle: Path, key: Path) -> Outcome:
    """Sign every file of BUNDLE, and write the signature to its model.sig.

    `fuseconv verify BUNDLE --signer PUBLIC_KEY` checks the signature. The password of an encrypted key is read from
    the environment variable FUSECONV_KEY_PASSWORD.
    """
    with needs_extra("sign"):
        from fuseconv.provenance import signature

        path = signature.sign(bundle, key)

    def render(console: Console) -> None:
        console.print(f"signed: {path}", highlight=False, markup=False)

    return Outcome({"signature": str(path)}, render)
