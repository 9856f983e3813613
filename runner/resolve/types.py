"""The plan and what it is made of."""

from dataclasses import dataclass

from runner.predict.footprint import Footprint
from runner.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision: what was asked, what was taken, and why."""

    name: str
    asked: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to type so that it fits, with the peak that was predicted for it."""

    override: str
    """one or more command-line overrides, separated by spaces"""
    peak: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Nothing `auto` is left. Sizes are bytes; None is unknown."""

    settings: Settings
    choices: tuple[Choice, ...]
    footprint: Footprint
    budget: int | None
    """what this run may take, overhead counted in"""
    budget_source: str
    margin: int
    """kept clear of the budget"""
    fits: bool
    forced: bool = False
    """whether it runs although it does not fit"""
    remedies: tuple[Remedy, ...] = ()

    @property
    def shortfall(self) -> int:
        """Bytes by which peak and margin exceed the budget; 0 when it fits or the budget is unknown."""
        return 0 if self.budget is None else max(0, self.footprint.peak + self.margin - self.budget)
