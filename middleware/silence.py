"""`Silence`: partitions that do not acknowledge what is written to them, and who may try them. Pure."""

from __future__ import annotations

from ackwise.middleware.refusals import Place

__all__ = ["Silence"]


class Silence:
    """While a partition is silent, one record at a time tries it; the others go elsewhere, if they can."""

    def __init__(self) -> None:
        self._silent: dict[Place, bool] = {}  #: whether each is being tried

    def __contains__(self, place: Place) -> bool:
        return place in self._silent

    def may_try(self, place: Place) -> bool:
        """Whether a record may be written to `place` now. Whoever is let write to a silent one says how that ended, with `tell`."""
        if self._silent.get(place) is None:
            return True
        is_tried, self._silent[place] = self._silent[place], True
        return not is_tried

    def tell(self, place: Place, *, is_silent: bool) -> None:
        """What was written to `place` was not acknowledged in time, or it was."""
        if is_silent:
            self._silent[place] = False
        else:
            self._silent.pop(place, None)

    def end_try(self, place: Place) -> None:
        """Nobody knows how a try has ended: another one may begin."""
        if place in self._silent:
            self._silent[place] = False
