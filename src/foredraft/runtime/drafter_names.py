"""What the names of drafters mean: each part of a name to the drafter it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
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
from foredraft.planning.choose import Chooser
from foredraft.retrieval.memory import Memory
from foredraft.runtime.custom_drafter import import_drafter
from foredraft.runtime.loaded_model import LoadedModel

LoadHeads = Callable[[str], RecurrentHeads | MedusaHeads]
AUTO: Final = "auto"
PER_MATCH: Final = 4  # measured, docs/log.md
FLOOR: Final = 0.03  # measured, docs/log.md; so is the next
BRANCHES: Final = 2
SURE: Final = 0.4  # least chance of a copied guess of a fixed length where others wait to be asked
MODEL_TOKENS: Final = 5
HEADS_TOKENS: Final = 4
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
    loaded: LoadedModel,
    load_draft: Callable[[Any], LoadedModel],
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
    load_heads = load_heads or heads_of(loaded)
    note = None
    if AUTO in parts:
        best, note = _best(load_heads)
        parts = list(dict.fromkeys(name for part in parts for name in (best if part == AUTO else (part,))))
    capped = draft_tokens is None and not planned
    floor = FLOOR if capped else 0.0 if planned or len(parts) == 1 else SURE
    drafters = [
        _one_drafter(part, loaded, load_draft, capped, floor, temperature, memory, load_heads) for part in parts
    ]
    if not planned:
        return drafters[0] if len(drafters) == 1 and note is None else FirstOf(drafters, note)
    guessing = [part for part in drafters if not isinstance(part, NoDrafter)]
    return Chooser(guessing, note=note, vocabulary=loaded.target.vocabulary) if guessing else drafters[0]


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
        except ForedraftError as error:
            return ("suffix",), f"drafter heads is left out: {error}, and {damaged.why}"
    except ForedraftError as error:  # damaged heads are a reason to draft without, and to say so
        return ("suffix",), f"drafter heads is left out: {error}"


def _one_drafter(
    name: str,
    loaded: LoadedModel,
    load_draft: Callable[[Any], LoadedModel],
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
        branches = 0 if loaded.tier == "transformers" else BRANCHES  # which runs a tree path by path
        return Suffix(floor, branches, memory)
    if kind == "model":
        return draft_model(load_draft(rest), loaded, capped, temperature)
    if kind == "layers":
        view, length = layers_view(loaded.target, rest, loaded.cache, loaded.name, loaded.identity)
        return ModelDrafter(view, view.vocabulary, temperature, length if capped else None, kind)
    if kind == "heads":
        return HeadsDrafter(load_heads(rest), temperature, HEADS_TOKENS if capped else None)
    return import_drafter(name)


def heads_of(loaded: LoadedModel) -> LoadHeads:
    """Return what opens heads for a model, each once, whatever length or temperature they draft with."""
    opened: dict[str, RecurrentHeads | MedusaHeads] = {}

    def load(which: str) -> RecurrentHeads | MedusaHeads:
        if which not in opened:
            opened[which] = open_heads(which, loaded.target.model, loaded.folder, loaded.cache, loaded.name)
        return opened[which]

    return load


def draft_model(draft: LoadedModel, loaded: LoadedModel, capped: bool, temperature: float | None) -> ModelDrafter:
    """Return a drafter around a second model. Raises VocabularyMismatch or DrafterError if it cannot draft."""
    if draft.no_speculation_reason is not None:
        raise DrafterError(f"{draft.name} cannot draft: {draft.no_speculation_reason}")
    theirs, ours = draft.target.vocabulary, loaded.target.vocabulary
    if draft.tokenizer is not None and loaded.tokenizer is not None:
        difference = loaded.tokenizer.first_difference(draft.tokenizer)
        if difference is not None:
            token, mine, other = difference
            raise VocabularyMismatch(
                f"{draft.name} cannot draft for {loaded.name}: vocabularies of {theirs} and {ours} tokens differ,"
                f" first at token {token} ({other!r} against {mine!r})"
            )
    elif theirs != ours:
        raise VocabularyMismatch(
            f"{draft.name} cannot draft for {loaded.name}: {theirs} and {ours} tokens, and no tokenizers to compare"
        )
    return ModelDrafter(draft.target, ours, temperature, MODEL_TOKENS if capped else None)
