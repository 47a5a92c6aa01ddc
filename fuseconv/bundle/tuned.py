"""The times of a bundle's targets, as measured during its conversion.

Nothing here imports torch.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Speed(BaseModel):
    """The times of one call of a target in microseconds.

    Each artifact is measured in turn with the unfused artifact.

    Attributes:
        us: the time of the artifact in the bundle.
        fused_us: the time of the artifact with every match replaced.
        unfused_us: the time of the artifact of the captured program, with no match replaced.
        noise_us: the uncertainty of the difference between the unfused artifact and the artifact in the bundle. If both
            are the same artifact, that of the difference from the artifact with every match replaced.
        measured: the number of measurements that left out one class of equal matches, or a group of suspected classes
            at once.
        classes: the number of classes that insert an op.
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
    """The results of the measurement.

    Attributes:
        device: the name of the processor or GPU. The times say nothing about other devices.
        speeds: maps a target to its times.
        untimed: maps a target that could not be compared to the reason.
        needed: maps a target to the classes of matches without which it cannot be written, each with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: str
    speeds: dict[str, Speed]
    untimed: dict[str, str] = {}
    needed: dict[str, dict[str, str]] = {}

    def fastest(self) -> tuple[str, ...]:
        """Returns the targets that were timed, the fastest first."""
        return tuple(sorted(self.speeds, key=lambda target: self.speeds[target].us))
