"""The times of the targets of a bundle, as measured at its conversion. Nothing here imports torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Speed(BaseModel):
    """The times of a call of one target in microseconds, each measured in turn with the unfused artifact.

    Attributes:
        us: the artifact in the bundle.
        fused_us: the artifact with every match replaced.
        unfused_us: the artifact of the captured program, with no match replaced.
        noise_us: the uncertainty of the difference between the unfused artifact and the one in the bundle or, if both
            are one, that with every match replaced.
        measured: how many classes of equal matches were left out by themselves, or groups of suspects at once.
        classes: how many there are that insert an op.
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
    """What was measured.

    Attributes:
        device: the name of the processor or GPU. The times say nothing about another.
        speeds: target to its times.
        untimed: the targets that could not be compared, with the reasons.
        needed: target to the classes of matches without which it cannot be written, with the reasons.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: str
    speeds: dict[str, Speed]
    untimed: dict[str, str] = {}
    needed: dict[str, dict[str, str]] = {}

    def fastest(self) -> tuple[str, ...]:
        """Returns the targets that were timed, the fastest first."""
        return tuple(sorted(self.speeds, key=lambda target: self.speeds[target].us))
