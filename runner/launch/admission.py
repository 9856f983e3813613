"""Which jobs may be in memory together: those whose predicted needs fit the budget together."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
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
    """what the job may take when it is alone, memory.limit counted in; None is unknown"""
    free: int | None
    """what is free in the pool while nobody is inside; None is unknown"""
    plans: bool = False
    """whether it only makes a plan, which is soon over: no memory.limit holds for it, and it waits behind nobody"""


@dataclass(slots=True)
class Admission:
    """Lets jobs in, first come first served.

    A job that is alone is let in: whether it fits is its own plan's verdict. Jobs together must fit what is free, and
    the smallest of their budgets, so that memory.limit holds for all that run at once. Workers share the server's
    pages, which each prediction counts again, so together they take less than what is added up here.
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
        earlier = [] if claim.plans else self._waiting[: self._waiting.index(claim)]
        return [other for other in earlier if other.pool == claim.pool and not other.plans]

    def _fits(self, claim: Claim) -> bool:
        if self._before(claim):
            return False
        together = [claim, *self._others(claim)]
        if len(together) == 1:
            return True
        working = [other for other in together if not other.plans]
        return _at_most(together, [other.free for other in together]) and (
            claim.plans or len(working) == 1 or _at_most(working, [other.budget for other in working])
        )

    def _sentence(self, claim: Claim) -> str:
        others = self._others(claim)
        held = sum(other.size or 0 for other in others)
        rooms = [other.free if claim.plans or other.plans else other.budget for other in (claim, *others)]
        names = ", ".join(other.job for other in others) or "none"
        turn = ", ".join(other.job for other in self._before(claim))
        return (
            f"for memory of {claim.pool}: needs {format_size(claim.size)} with its margin; of "
            f"{format_size(min((room for room in rooms if room is not None), default=None))} job {names} may take "
            f"{format_size(held)}" + (f"; job {turn} comes first" if turn else "")
        )


def _at_most(claims: Sequence[Claim], rooms: Sequence[int | None]) -> bool:
    """Whether the claims fit together into each of the rooms; what is unknown does not."""
    sizes = [claim.size for claim in claims if claim.size is not None]
    known = [room for room in rooms if room is not None]
    return len(sizes) == len(claims) and len(known) == len(rooms) and sum(sizes) <= min(known)
