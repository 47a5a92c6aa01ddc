"""The times of the targets of a bundle, as measured at its conversion. Nothing here imports torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Speed(BaseModel):
    """The times of a call of one target in microseconds, each measured in turn with the unfused artifact.

    Attributes:
        us: the artifact in the bundle.
        fused_us: the artifact with every match replaced.
        unfused_us: the artifact of the captured program, with no match replaced.
        noise_us: the uncertainty of the difference between `us` and `unfused_us`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    us: float
    fused_us: float
    unfused_us: float
    noise_us: float

    def __str__(self) -> str:
        return (
            f"{self.us:.1f} us; every match fused {self.fused_us:.1f} us, "
            f"none {self.unfused_us:.1f} us, noise {self.noise_us:.1f} us"
        )


class Tuned(BaseModel):
    """What was measured.

    Attributes:
        device: the name of the processor or GPU. The times say nothing about another.
        speeds: target to its times.
        untimed: the targets that could not be compared, with the reasons.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: str
    speeds: dict[str, Speed]
    untimed: dict[str, str] = {}

    def fastest(self) -> tuple[str, ...]:
        """Returns the targets that were timed, the fastest first."""
        return tuple(sorted(self.speeds, key=lambda target: self.speeds[target].us))
