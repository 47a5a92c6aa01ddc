"""The times of a bundle's targets, as measured during its conversion.

Nothing here imports torch.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Speed(BaseModel):
    """The times of one call of a target in microseconds.

    The timings of each artifact are interleaved with timings of the unfused artifact.

    Attributes:
        us: the time of the artifact in the bundle.
        fused_us: the time of the artifact with every match replaced.
        unfused_us: the time of the artifact of the captured program, with no match replaced.
        noise_us: the uncertainty of the difference between the times of the unfused artifact and the artifact in the
            bundle. If the bundle contains the unfused artifact, the uncertainty of the difference between its time and
            `fused_us`.
        measured: the number of measured variants. Each variant leaves one class of equal matches unfused, or a group
            of classes that are suspected to be slower.
        classes: the number of classes of equal matches that insert an op.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    us: float
    fused_us: float
    unfused_us: float
    noise_us: float
    measured: int
    classes: int

    def __str__(self) -> str:
        return (
            f"{self.us:.1f} us; every match fused {self.fused_us:.1f} us, "
            f"none {self.unfused_us:.1f} us, noise {self.noise_us:.1f} us; "
            f"{self.measured} of {self.classes} classes measured"
        )


class Tuned(BaseModel):
    """The results of timing a bundle's targets.

    Attributes:
        device: the name of the CPU or GPU. The times apply only to this device.
        speeds: maps the name of each timed target to its times.
        untimed: maps the name of each target that could not be timed to the reason.
        needed: maps the name of a target to the classes of matches that must be replaced, each with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: str
    speeds: dict[str, Speed]
    untimed: dict[str, str] = {}
    needed: dict[str, dict[str, str]] = {}

    def fastest(self) -> tuple[str, ...]:
        """Returns the names of the timed targets, the fastest first."""
        return tuple(sorted(self.speeds, key=lambda target: self.speeds[target].us))
