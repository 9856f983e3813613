"""Which jobs may be in memory together: those whose predicted needs fit the budget together."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from runner.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """What one job wants to take, and of what."""

    job: str
    pool: str
    """one memory: cpu, or a device that has its own"""
    size: int | None
    """predicted peak and margin in bytes; None is unknown"""
    budget: int | None
    """what the job may take when it is alone; None is unknown"""
    in_turn: bool = True
    """whether it waits behind those that came before it; small and short claims need not"""


@dataclass(slots=True)
class Admission:
    """Lets jobs in, first come first served.

    A job that is alone is let in: whether it fits is its own plan's verdict. Jobs together must fit the smallest of
    their budgets, so that memory.limit holds for all that run at once. Workers share the server's pages, which each
    prediction counts again, so together they take less than what is added up here.
    """

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _inside: list[Claim] = field(default_factory=list)
    _waiting: list[Claim] = field(default_factory=list)
    _closed: bool = False

    @contextlib.contextmanager
    def admitted(self, claim: Claim, *, tell: Callable[[str], None]) -> Iterator[None]:
        """Wait until `claim` fits beside the others and hold it; what it waits for is told once.

        Raises KeyboardInterrupt when `close` was called before.
        """
        with self._changed:
            self._waiting.append(claim)
            try:
                if not self._fits(claim):
                    tell(self._sentence(claim))
                while not self._closed and not self._fits(claim):
                    self._changed.wait()
                if self._closed:
                    raise KeyboardInterrupt
                self._inside.append(claim)
            finally:
                self._waiting.remove(claim)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(claim)
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _others(self, claim: Claim) -> list[Claim]:
        return [other for other in self._inside if other.pool == claim.pool]

    def _before(self, claim: Claim) -> list[Claim]:
        earlier = self._waiting[: self._waiting.index(claim)] if claim.in_turn else []
        return [other for other in earlier if other.pool == claim.pool and other.in_turn]

    def _fits(self, claim: Claim) -> bool:
        others = self._others(claim)
        if self._before(claim):
            return False
        if not others:
            return True
        sizes = [other.size for other in (claim, *others)]
        budgets = [other.budget for other in (claim, *others)]
        known = [size for size in sizes if size is not None], [budget for budget in budgets if budget is not None]
        return len(known[0]) == len(sizes) and len(known[1]) == len(budgets) and sum(known[0]) <= min(known[1])

    def _sentence(self, claim: Claim) -> str:
        others = self._others(claim)
        held = sum(other.size or 0 for other in others)
        budgets = [other.budget for other in (claim, *others) if other.budget is not None]
        names = ", ".join(other.job for other in others) or "none"
        turn = ", ".join(other.job for other in self._before(claim))
        return (
            f"for memory of {claim.pool}: needs {format_size(claim.size)} with its margin; of "
            f"{format_size(min(budgets, default=None))} job {names} may take {format_size(held)}"
            + (f"; job {turn} comes first" if turn else "")
        )
