"""Makes conversions reproducible: rejects measurements, and lists the targets whose bytes may still differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseconv.errors import UsageError
from fuseconv.pipeline.tune import Tune
from fuseconv.targets import spec_of


def untimed(tune: Tune | None, search: bool | None, not_slower_than: Sequence[str]) -> Tune:
    """Checks that no measurements are requested, because times vary between runs. Returns `none`, the value of `tune`.

    Raises:
        UsageError: measurements are requested.
    """
    asked = {"--tune": tune not in (None, "none"), "--search": bool(search), "--not-slower-than": bool(not_slower_than)}
    for flag, is_asked in asked.items():
        if is_asked:
            locked = "; or convert with it and --lock once, and then with --frozen --reproducible"
            raise UsageError(
                f"--reproducible cannot be combined with {flag}: {flag} runs benchmarks, whose results vary",
                where="--reproducible",
                fix=f"remove {flag}{'' if flag == '--not-slower-than' else locked}",
            )
    return "none"


def varying(targets: Sequence[str]) -> Mapping[str, str]:
    """Returns the reason why a target's files may differ after another conversion, by the name of the target."""
    return {name: spec_of(name).varies for name in targets if spec_of(name).varies}
