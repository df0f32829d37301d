"""From names to drafters: those that guess for a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from foredraft.core.capabilities import WithNotice
from foredraft.core.protocols import Drafter
from foredraft.drafters.first import FirstOf
from foredraft.drafters.heads import HeadsDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.options import AssistantModel, Settings
from foredraft.planning.choose import Chooser
from foredraft.retrieval.memory import Memory
from foredraft.runtime.custom_drafter import guarded
from foredraft.runtime.drafter_names import draft_model, heads_of, make_drafter
from foredraft.runtime.loaded_model import LoadedModel, Machine, open_draft_model, open_model
from foredraft.system.files import Progress

DRAFT_TOKENS: Final = 15
_OBJECTS: Final = 8  # users' own drafters that are kept


def parts_of(drafter: Drafter) -> Iterator[Drafter]:
    """Yield the drafters that are joined in one, or the one."""
    if isinstance(drafter, FirstOf | Chooser):
        for part in drafter.drafters:
            yield from parts_of(part)
    else:
        yield drafter


def notes_of(drafter: Drafter) -> list[str]:
    """Return what a user should know of a drafter's choices that he did not make."""
    models = (part.model for part in parts_of(drafter) if isinstance(part, ModelDrafter))
    notices = (model.notice for model in models if isinstance(model, WithNotice))
    notes = (drafter.note if isinstance(drafter, FirstOf | Chooser) else None, *notices)
    return list(dict.fromkeys(notice for notice in notes if isinstance(notice, str)))


def slower_paths(drafter: Drafter) -> list[str]:
    """Return what a drafter says of a slower path that it takes, and why."""
    notes = (part.notice for part in parts_of(drafter) if isinstance(part, WithNotice))
    return list(dict.fromkeys(notice for notice in notes if notice is not None))


def _repeatable(settings: Settings) -> bool:
    """Say whether lengths must be fixed: by ratio a seed's text depends on them, so that no planner could repeat it.

    It would not even be exact: of two texts with one seed, a planner learns from the first what the second will draw.
    """
    return settings.seed is not None and settings.rule == "ratio" and not settings.sampling.greedy


class Drafters:
    """The drafters of one model by what was asked for; each is made once. ``memory`` is what they share."""

    def __init__(
        self,
        loaded: LoadedModel,
        machine: Machine,
        default: str | Drafter,
        draft_tokens: int | None,
        draft_temperature: float | None,
        memory: Memory,
        progress: Progress | None = None,
    ) -> None:
        self._loaded = loaded
        self._machine = machine
        self._memory = memory
        self._progress = progress
        self._hosts: dict[str, LoadedModel] = {}
        self._heads = heads_of(loaded)
        self._made: dict[tuple[str, int | None, float | None, bool], Drafter] = {}
        self._objects: dict[int, tuple[object, Drafter, Drafter]] = {}  # by identity, which the first keeps alive
        self._draft_tokens = draft_tokens
        self._draft_temperature = draft_temperature
        self._asked: object = default
        self.default = self._drafter(default, draft_tokens, draft_temperature, planned=draft_tokens is None)

    def of(self, settings: Settings) -> Drafter:
        """Return the drafter of one generation: the one its options name, or the default."""
        asked = self._asked if settings.drafter is None else settings.drafter
        length = self._draft_tokens if settings.draft_tokens is None else settings.draft_tokens
        draft_temperature = (
            self._draft_temperature if settings.draft_temperature is None else settings.draft_temperature
        )
        return self._drafter(asked, length, draft_temperature, planned=length is None and not _repeatable(settings))

    def length(self, settings: Settings, drafter: Drafter) -> int | None:
        """Return how many guesses a round may have; None where the planner decides."""
        if isinstance(drafter, NoDrafter):
            return 0
        length = settings.draft_tokens if settings.draft_tokens is not None else self._draft_tokens
        return DRAFT_TOKENS if length is None and _repeatable(settings) else length

    def no_speculation_reason(self, settings: Settings, drafter: Drafter) -> str | None:
        """Say why nothing is guessed, where nothing is."""
        if self._loaded.no_speculation_reason is not None:
            return f"off: {self._loaded.no_speculation_reason}"
        if isinstance(drafter, NoDrafter):
            return "off: drafter none was asked for"
        return "off: 0 draft tokens were asked for" if self.length(settings, drafter) == 0 else None

    def without_effect(self, settings: Settings, drafter: Drafter) -> list[str]:
        """Say which drafting options do nothing for this drafter, and why."""
        length, draft_temperature = settings.draft_tokens, settings.draft_temperature
        if settings.drafter is None:  # what the model was loaded with was meant for this one
            length = self._draft_tokens if length is None else length
            draft_temperature = self._draft_temperature if draft_temperature is None else draft_temperature
        if isinstance(drafter, NoDrafter):
            given = {"draft_tokens": length, "draft_temperature": draft_temperature}
            names = [name for name, value in given.items() if value is not None]
            return [f"{' and '.join(names)} had no effect: nothing is drafted"] if names else []
        if draft_temperature is None or any(
            isinstance(part, ModelDrafter | HeadsDrafter) for part in parts_of(drafter)
        ):
            return []
        return [f"draft_temperature had no effect: drafter {drafter.name} does not draw by it"]

    def _drafter(self, asked: object, length: int | None, temperature: float | None, planned: bool) -> Drafter:
        if self._loaded.no_speculation_reason is not None:
            return NoDrafter()
        if isinstance(asked, AssistantModel):
            if not isinstance(asked.model, str | Path):
                loaded = open_model(asked.model, Machine(context=self._machine.context))
                drafter: Drafter = draft_model(loaded, self._loaded, False, temperature)
                return Chooser([drafter], vocabulary=self._loaded.target.vocabulary) if planned else drafter
            asked = f"model:{asked.model}"
        if not isinstance(asked, str):
            return self._object(asked, planned)
        key = (asked, length, temperature, planned)
        if key not in self._made:
            given = (self._loaded, self._load, length, temperature, self._memory, self._heads)
            self._made[key] = make_drafter(asked, *given, planned=planned)
        return self._made[key]

    def _object(self, asked: object, planned: bool) -> Drafter:
        """Return a user's own drafter, which keeps its record from one generation to the next. Raises DrafterError."""
        if id(asked) not in self._objects:
            drafter = guarded(asked)
            parts = drafter.drafters if isinstance(drafter, FirstOf) else (drafter,)
            width = self._loaded.target.vocabulary
            known = isinstance(drafter, Chooser | NoDrafter)
            chooser: Drafter = drafter if known else Chooser(parts, vocabulary=width)
            if len(self._objects) >= _OBJECTS:
                del self._objects[next(iter(self._objects))]
            self._objects[id(asked)] = asked, drafter, chooser
        _, drafter, chooser = self._objects[id(asked)]
        return chooser if planned else drafter

    def _load(self, name: str) -> LoadedModel:
        """Load a draft model once, under the target's own machine options; its context is its own."""
        if name not in self._hosts:
            self._hosts[name] = open_draft_model(name, self._machine, self._loaded, self._progress)
        return self._hosts[name]
