"""Signs bundles and verifies signatures. The signature is the file `model.sig`, in the OpenSSF Model Signing format.

The signature covers every other file in the bundle's folder. A copy of the folder is therefore signed too, and nobody
without the private key can change, add or remove a file unnoticed. The package `model-signing` writes and verifies the
signature. The command of this package can verify the signature without fuseconv.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.bundle.files import MANIFEST, SIGNATURE
from fuseconv.bundle.manifest import open_bundle
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.errors import FileError, RefusedError, UsageError
from fuseconv.processes.extras import needs_extra
from fuseconv.untrusted.files import read_plain

if TYPE_CHECKING:
    from model_signing import hashing

PASSWORD = "FUSECONV_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable that holds the password of an encrypted key."""

_NEW_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl ec -in key.pem -pubout -out key.pub"


def sign(bundle: Path, key: Path) -> Path:
    """Signs a bundle with a private key, and returns the path of the signature. Replaces an older signature.

    Args:
        bundle: the folder of the bundle. Its files must be exactly the files that its manifest lists.
        key: a PEM file with an ECDSA private key on the curve P-256, P-384 or P-521. The password of an encrypted key
            is read from the environment variable `FUSECONV_KEY_PASSWORD`.

    Raises:
        RefusedError: the bundle is damaged.
        UsageError: the file does not contain such a private key, or its password is wrong or missing.
        FileError: the key cannot be read, or the signature cannot be written.
        UpstreamError: the packages of the extra `sign` are not installed.
    """
    with needs_extra("sign"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from model_signing import signing

    _check_files(bundle)
    _readable(key)
    password = os.environ.get(PASSWORD)
    try:
        # model-signing passes the password to a function that requires bytes.
        secret = None if password is None else password.encode()
        config = signing.Config().use_elliptic_key_signer(private_key=key, password=secret)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"the file cannot be read as a private ECDSA key: {error}",
            where=str(key),
            fix=f"set {PASSWORD} if the key is encrypted, or create a key: {_NEW_KEY}",
        ) from error
    path, partial = bundle / SIGNATURE, bundle.absolute().with_name(f".{bundle.absolute().name}.{SIGNATURE}")
    try:
        config.set_hashing_config(_hashing()).sign(bundle, partial)
        partial.replace(path)
    except OSError as error:
        raise FileError.unwritable("the signature cannot be written", error, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def verify_signature(bundle: Path, signer: Path) -> None:
    """Checks that the holder of a private key signed exactly the files that a bundle now contains.

    Args:
        bundle: the folder of the bundle.
        signer: the path of a PEM file with the signer's public key.

    Raises:
        RefusedError: a file was changed, added or removed; the bundle is not signed; or it was signed with another key.
        UsageError: the key file does not contain an ECDSA public key.
        FileError: the key cannot be read.
        UpstreamError: the packages of the extra `sign` are not installed.
    """
    with needs_extra("sign"):
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from model_signing import verifying

    path = bundle / SIGNATURE
    _check_files(bundle)
    _readable(signer)
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=signer)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        fix = "give the public key: openssl ec -in key.pem -pubout -out key.pub"
        raise UsageError(
            f"the file cannot be read as a public ECDSA key: {error}", where=str(signer), fix=fix
        ) from error
    fix = f"get the bundle again from its signer, or sign it: fuseconv sign {bundle} --key KEY"
    try:
        read_plain(path, links=False)  # rejects anything but a regular file before model-signing opens it
    except FileNotFoundError:
        raise RefusedError(f"the bundle is not signed: it contains no {SIGNATURE}", where=str(path), fix=fix) from None
    except OSError as error:
        raise RefusedError(f"the signature cannot be read: {error.strerror}", where=str(path), fix=fix) from error
    try:
        with contextlib.redirect_stdout(sys.stderr):  # model-signing prints a warning about old signatures
            config.set_hashing_config(_hashing()).verify(bundle, path)
    except InvalidSignature:
        what = "the signature was not made with this signer's private key"
        raise RefusedError(what, where=str(path), fix=fix) from None
    # model-signing raises these exceptions for a file that is not a valid signature.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).strip() or type(error).__name__
        if reason.startswith("Signature mismatch"):  # the rest of the message lists every hash as bytes
            what = "the files differ from the signed files: some of them and the manifest were changed"
            raise RefusedError(what, where=str(bundle / MANIFEST), fix=fix) from error
        raise RefusedError(f"the signature is not valid: {reason}", where=str(path), fix=fix) from error


def _hashing() -> hashing.Config:
    """Returns the hashing configuration. Every file is hashed except the signature, even the files of Git."""
    from model_signing import hashing

    every = hashing.Config().use_file_serialization()
    return every.set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _check_files(bundle: Path) -> None:
    """Raises RefusedError unless the folder contains exactly the files that its manifests list."""
    if not has_methods(bundle):
        open_bundle(bundle)
        return
    for name in open_methods(bundle).methods:
        open_bundle(method_folder(bundle, name), shared=False)


def _readable(key: Path) -> None:
    """Raises FileError if a key cannot be read."""
    try:
        read_plain(key)
    except OSError as error:
        fix = "give the path of a PEM file"
        raise FileError(f"the key cannot be read: {error.strerror}", where=str(key), fix=fix) from error
