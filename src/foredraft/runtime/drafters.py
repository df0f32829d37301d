"""From names to drafters: those that guess for a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from foredraft.core.protocols import Drafter
from foredraft.drafters.first import FirstOf
from foredraft.drafters.heads import HeadsDrafter
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.errors import DamagedHeads, DrafterError, ForedraftError, NoHeads, VocabularyMismatch
from foredraft.models.heads.modules import MedusaHeads, RecurrentHeads
from foredraft.models.heads.open import open_heads
from foredraft.models.views.layer_choice import check_which, layers_view
from foredraft.options import AssistantModel, Settings
from foredraft.planning.choose import Chooser
from foredraft.retrieval.memory import Memory
from foredraft.runtime.custom_drafter import guarded, import_drafter
from foredraft.runtime.host import Host, Machine, load_draft_host, load_host
from foredraft.system.files import Progress

LoadHeads = Callable[[str], RecurrentHeads | MedusaHeads]
AUTO: Final = "auto"
DRAFT_TOKENS: Final = 15
PER_MATCH: Final = 4  # measured, docs/log.md
FLOOR: Final = 0.03  # measured, docs/log.md; so is the next
BRANCHES: Final = 2
SURE: Final = 0.4  # least chance of a copied guess of a fixed length where others wait to be asked
MODEL_TOKENS: Final = 5
HEADS_TOKENS: Final = 4
_OBJECTS: Final = 8  # users' own drafters that are kept
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_names(names: str) -> None:
    """Refuse a drafter that nobody knows, before anything is loaded for it. Raises DrafterError."""
    parts = [part.strip() for part in names.split("+")]
    for name in parts:
        if name == "none" and len(parts) > 1:
            raise DrafterError("drafter none guesses nothing, so it cannot be joined with others: leave it out")
        if parts.count(name) > 1:
            raise DrafterError(f"drafter {name!r} is named twice")
        kind, colon, rest = name.partition(":")
        if kind == "model" and not rest:
            raise DrafterError("drafter model needs a model: model:PATH, an alias, a folder, a hub id or a .gguf file")
        if kind == "layers":
            check_which(rest, named=bool(colon))
        simple = name in ("auto", "none", "lookup", "suffix") or kind in ("model", "layers", "heads")
        if not simple and not _CLASS.fullmatch(name):
            known = "auto, none, lookup, suffix, model:PATH, heads[:FILE], layers[:N|:FILE] or package.module:Class"
            raise DrafterError(f"unknown drafter {name!r}: use {known}")


def make_drafter(
    names: str,
    host: Host,
    load_draft: Callable[[Any], Host],
    draft_tokens: int | None,
    temperature: float | None,
    memory: Memory | None = None,
    load_heads: LoadHeads | None = None,
    planned: bool = False,
) -> Drafter:
    """Return the drafter that ``names`` says.

    ``load_draft`` loads a draft model by name, ``load_heads`` heads by their path (``heads_of``); ``memory`` holds the
    recent texts that requests may name a scope of. ``planned`` says that a planner will decide on lengths: drafters
    then have none of their own, and of several joined by ``+`` whoever promises most guesses in a round; without it
    they are asked in order. Raises DrafterError for a name nobody knows.
    """
    check_names(names)
    parts = [part.strip() for part in names.split("+")]
    load_heads = load_heads or heads_of(host)
    said = None
    if AUTO in parts:
        best, said = _best(load_heads)
        parts = list(dict.fromkeys(name for part in parts for name in (best if part == AUTO else (part,))))
    capped = draft_tokens is None and not planned
    floor = FLOOR if capped else 0.0 if planned or len(parts) == 1 else SURE
    drafters = [_one_drafter(part, host, load_draft, capped, floor, temperature, memory, load_heads) for part in parts]
    if not planned:
        return drafters[0] if len(drafters) == 1 and said is None else FirstOf(drafters, said)
    guessing = [part for part in drafters if not isinstance(part, NoDrafter)]
    return Chooser(guessing, said=said, vocabulary=host.target.vocabulary) if guessing else drafters[0]


def _best(load_heads: LoadHeads) -> tuple[tuple[str, ...], str | None]:
    """Return the drafters that ``auto`` stands for: with heads where there are any; and what is to be said of it."""
    try:
        load_heads("")
        return ("suffix", "heads"), None
    except NoHeads:
        return ("suffix",), None
    except DamagedHeads as damaged:
        try:
            load_heads(damaged.spare)
            return ("suffix", f"heads:{damaged.spare}"), f"{damaged.others} are used, because {damaged.why}"
        except ForedraftError as fault:
            return ("suffix",), f"drafter heads is left out: {fault}, and {damaged.why}"
    except ForedraftError as fault:  # damaged heads are a reason to draft without, and to say so
        return ("suffix",), f"drafter heads is left out: {fault}"


def _one_drafter(
    name: str,
    host: Host,
    load_draft: Callable[[Any], Host],
    capped: bool,
    floor: float,
    temperature: float | None,
    memory: Memory | None,
    load_heads: LoadHeads,
) -> Drafter:
    kind, _, rest = name.partition(":")
    if kind == "none":
        return NoDrafter()
    if kind == "lookup":
        return Lookup(per_match=PER_MATCH if capped else None)
    if kind == "suffix":
        branches = 0 if host.tier == "transformers" else BRANCHES  # which runs a tree path by path
        return Suffix(floor, branches, memory)
    if kind == "model":
        return draft_model(load_draft(rest), host, capped, temperature)
    if kind == "layers":
        view, length = layers_view(host.target, rest, host.cache, host.name, host.identity)
        return ModelDrafter(view, view.vocabulary, temperature, length if capped else None, kind)
    if kind == "heads":
        return HeadsDrafter(load_heads(rest), temperature, HEADS_TOKENS if capped else None)
    return import_drafter(name)


def heads_of(host: Host) -> LoadHeads:
    """Return what opens heads for a model, each once, whatever length or temperature they draft with."""
    opened: dict[str, RecurrentHeads | MedusaHeads] = {}

    def load(which: str) -> RecurrentHeads | MedusaHeads:
        if which not in opened:
            opened[which] = open_heads(which, host.target.model, host.folder, host.cache, host.name)
        return opened[which]

    return load


def draft_model(draft: Host, host: Host, capped: bool, temperature: float | None) -> ModelDrafter:
    """Return a drafter around a second model. Raises VocabularyMismatch or DrafterError if it cannot draft."""
    if draft.off is not None:
        raise DrafterError(f"{draft.name} cannot draft: {draft.off}")
    theirs, ours = draft.target.vocabulary, host.target.vocabulary
    if draft.tokenizer is not None and host.tokenizer is not None:
        difference = host.tokenizer.first_difference(draft.tokenizer)
        if difference is not None:
            token, mine, other = difference
            raise VocabularyMismatch(
                f"{draft.name} cannot draft for {host.name}: vocabularies of {theirs} and {ours} tokens differ,"
                f" first at token {token} ({other!r} against {mine!r})"
            )
    elif theirs != ours:
        raise VocabularyMismatch(
            f"{draft.name} cannot draft for {host.name}: {theirs} and {ours} tokens, and no tokenizers to compare"
        )
    return ModelDrafter(draft.target, ours, temperature, MODEL_TOKENS if capped else None)


def parts_of(drafter: Drafter) -> Iterator[Drafter]:
    """Yield the drafters that are joined in one, or the one."""
    if isinstance(drafter, FirstOf | Chooser):
        for part in drafter.drafters:
            yield from parts_of(part)
    else:
        yield drafter


def remarks(drafter: Drafter) -> list[str]:
    """Return what a user should know of a drafter's choices that he did not make."""
    models = (getattr(part.model, "notice", None) for part in parts_of(drafter) if isinstance(part, ModelDrafter))
    said = (drafter.said if isinstance(drafter, FirstOf | Chooser) else None, *models)
    return list(dict.fromkeys(notice for notice in said if isinstance(notice, str)))


def slower_paths(drafter: Drafter) -> list[str]:
    """Return what a drafter says of a slower path that it takes, and why."""
    said = (getattr(part, "notice", None) for part in parts_of(drafter))
    return list(dict.fromkeys(notice for notice in said if notice is not None))


def _repeatable(settings: Settings) -> bool:
    """Say whether lengths must be fixed: by ratio a seed's text depends on them, so that no planner could repeat it.

    It would not even be exact: of two texts with one seed, a planner learns from the first what the second will draw.
    """
    return settings.seed is not None and settings.rule == "ratio" and not settings.sampling.greedy


class Drafters:
    """The drafters of one model by what was asked for; each is made once. ``memory`` is what they share."""

    def __init__(
        self,
        host: Host,
        machine: Machine,
        default: str | Drafter,
        draft_tokens: int | None,
        draft_temperature: float | None,
        memory: Memory,
        progress: Progress | None = None,
    ) -> None:
        self._host = host
        self._machine = machine
        self._memory = memory
        self._progress = progress
        self._hosts: dict[str, Host] = {}
        self._heads = heads_of(host)
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
        warmth = self._draft_temperature if settings.draft_temperature is None else settings.draft_temperature
        return self._drafter(asked, length, warmth, planned=length is None and not _repeatable(settings))

    def length(self, settings: Settings, drafter: Drafter) -> int | None:
        """Return how many guesses a round may have; None where the planner decides."""
        if isinstance(drafter, NoDrafter):
            return 0
        length = settings.draft_tokens if settings.draft_tokens is not None else self._draft_tokens
        return DRAFT_TOKENS if length is None and _repeatable(settings) else length

    def off(self, settings: Settings, drafter: Drafter) -> str | None:
        """Say why nothing is guessed, where nothing is."""
        if self._host.off is not None:
            return f"off: {self._host.off}"
        if isinstance(drafter, NoDrafter):
            return "off: drafter none was asked for"
        return "off: 0 draft tokens were asked for" if self.length(settings, drafter) == 0 else None

    def without_effect(self, settings: Settings, drafter: Drafter) -> list[str]:
        """Say which drafting options do nothing for this drafter, and why."""
        length, warmth = settings.draft_tokens, settings.draft_temperature
        if settings.drafter is None:  # what the model was loaded with was meant for this one
            length = self._draft_tokens if length is None else length
            warmth = self._draft_temperature if warmth is None else warmth
        if isinstance(drafter, NoDrafter):
            given = {"draft_tokens": length, "draft_temperature": warmth}
            names = [name for name, value in given.items() if value is not None]
            return [f"{' and '.join(names)} had no effect: nothing is drafted"] if names else []
        if warmth is None or any(isinstance(part, ModelDrafter | HeadsDrafter) for part in parts_of(drafter)):
            return []
        return [f"draft_temperature had no effect: drafter {drafter.name} does not draw by it"]

    def _drafter(self, asked: object, length: int | None, temperature: float | None, planned: bool) -> Drafter:
        if self._host.off is not None:
            return NoDrafter()
        if isinstance(asked, AssistantModel):
            if not isinstance(asked.model, str | Path):
                host = load_host(asked.model, Machine(context=self._machine.context))
                drafter: Drafter = draft_model(host, self._host, False, temperature)
                return Chooser([drafter], vocabulary=self._host.target.vocabulary) if planned else drafter
            asked = f"model:{asked.model}"
        if not isinstance(asked, str):
            return self._object(asked, planned)
        key = (asked, length, temperature, planned)
        if key not in self._made:
            given = (self._host, self._load, length, temperature, self._memory, self._heads)
            self._made[key] = make_drafter(asked, *given, planned=planned)
        return self._made[key]

    def _object(self, asked: object, planned: bool) -> Drafter:
        """Return a user's own drafter, which keeps its record from one generation to the next. Raises DrafterError."""
        if id(asked) not in self._objects:
            drafter = guarded(asked)
            parts = drafter.drafters if isinstance(drafter, FirstOf) else (drafter,)
            width = self._host.target.vocabulary
            known = isinstance(drafter, Chooser | NoDrafter)
            chooser: Drafter = drafter if known else Chooser(parts, vocabulary=width)
            if len(self._objects) >= _OBJECTS:
                del self._objects[next(iter(self._objects))]
            self._objects[id(asked)] = asked, drafter, chooser
        _, drafter, chooser = self._objects[id(asked)]
        return chooser if planned else drafter

    def _load(self, name: str) -> Host:
        """Load a draft model once, under the target's own machine options; its context is its own."""
        if name not in self._hosts:
            self._hosts[name] = load_draft_host(name, self._machine, self._host, self._progress)
        return self._hosts[name]
