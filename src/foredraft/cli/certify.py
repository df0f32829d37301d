"""``foredraft certify``: check a model and its drafters against plain decoding, on this machine."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import find_own_classes, load_bare, machine_of, token_ids
from foredraft.cli.arguments.parser import Parser, number, one_of, whole, whole_or_auto
from foredraft.cli.arguments.prompts import read_lines
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import fit
from foredraft.errors import OptionError

if TYPE_CHECKING:
    from foredraft.core.protocols import Drafter
    from foredraft.measure.certificate.certificate import Certifier
    from foredraft.measure.certificate.plan import Check, Plan
    from foredraft.runtime.loaded_model import LoadedModel, Machine

_EPILOG: Final = """\
examples:
  foredraft certify
  foredraft certify --model PATH --drafter suffix+model:PATH --rule coupled
  foredraft certify --drafter mine:Drafter --prompts questions.jsonl --tokens 128 --json

Exit status 0 if every check holds, 1 if one does not.
"""
_SHOWN: Final = 5  # divergences of a check
_NAME: Final = 27
_DRAFTER: Final = 24


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft certify [options]"
    group = parser.add_argument_group("what is certified")
    arguments.add_model_name(group)
    group.add_argument(
        "--drafter",
        metavar="D",
        action="append",
        help="as for generate (default auto); again for another one. none is always the reference",
    )
    group.add_argument(
        "--draft-tokens", metavar="N", type=whole_or_auto, help="a draft length beside 1 and 4 (default auto)"
    )
    group.add_argument("--draft-temperature", metavar="T", type=number, help="the drafter's own")
    group.add_argument(
        "--rule", metavar="RULE", type=one_of("auto", "ratio", "coupled"), help="ratio, coupled, or auto (both)"
    )
    group = parser.add_argument_group("how deep")
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with prompt or turns (each turn on its own)")
    group.add_argument("--tokens", metavar="N", type=whole, help="longest answer (default 64)")
    group.add_argument(
        "--samples", metavar="N", type=whole, help="answers in each test of the distribution (default 48 of 64 tokens)"
    )
    group.add_argument("--seed", metavar="N", type=whole, help="other noise than that of seed 0")
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Check, and tell; every option and prompt is read before a model is loaded."""
    from foredraft.measure.bench.questions import QUESTIONS

    plan = _plan(args)
    prompts = QUESTIONS if args.prompts is None else _prompts(args.prompts, console)
    certifier = _certifier(args, plan, prompts, console)
    checks: list[Check] = []
    if not args.json:
        console.print(_heading(certifier, len(prompts)))
    for check in certifier.checks():
        checks.append(check)
        if not args.json:
            for line in _lines(check, console):
                console.print(line)
    console.progress.close()
    ok = all(check.ok for check in checks)
    if args.json:
        console.print(json.dumps(_document(certifier, checks, len(prompts))))
    else:
        failed, many = sum(not check.ok for check in checks), f"{len(checks)} check{'' if len(checks) == 1 else 's'}"
        verdict = f"certified: every check holds ({many})" if ok else f"NOT certified: {failed} of {many} failed"
        console.print(_painted(verdict, console, good=ok))
    return 0 if ok else 1


def _plan(args: argparse.Namespace) -> Plan:
    from foredraft.measure.certificate.plan import RULES, Plan
    from foredraft.options import draft_length
    from foredraft.runtime.drafter_names import check_names

    for name in args.drafter or ():
        check_names(name)
    if args.draft_temperature is not None and not 0 <= args.draft_temperature < math.inf:
        raise OptionError(f"draft_temperature must be a number of at least 0, not {args.draft_temperature}")
    named = {name: value for name in ("tokens", "samples", "seed") if (value := getattr(args, name)) is not None}
    length = draft_length("auto" if args.draft_tokens is None else args.draft_tokens)
    return Plan(rules=(args.rule,) if args.rule in RULES else RULES, draft_tokens=length, **named)


def _prompts(name: str, console: Console) -> list[str]:
    return [turn for line in read_lines(name, console.stdin) for turn in line.turns]


def _certifier(args: argparse.Namespace, plan: Plan, prompts: Sequence[str], console: Console) -> Certifier:
    from foredraft.measure.certificate.certificate import Certifier
    from foredraft.runtime.drafter_names import make_drafter
    from foredraft.runtime.drafters import notes_of, slower_paths

    loaded = load_bare(args, console)
    ids = token_ids(prompts, loaded, console)
    load_draft = load_drafts(args, console, loaded)
    names = tuple(dict.fromkeys(args.drafter or ["auto"]))
    for name in names:
        find_own_classes(name)
    notices: dict[str, None] = {}

    def make(name: str, length: int | None) -> Drafter:
        drafter = make_drafter(name, loaded, load_draft, length, args.draft_temperature)
        notices.update(dict.fromkeys(slower_paths(drafter) + notes_of(drafter)))
        return drafter

    certifier = Certifier(
        loaded,
        names,
        make,
        ids,
        plan,
        lambda done, total: console.progress.count(done, total, "certifying"),
    )
    console.progress.close()
    for notice in notices:
        console.say(f"note: {notice}")
    return certifier


def load_drafts(args: argparse.Namespace, console: Console, target: LoadedModel) -> _Drafts:
    """Return what loads draft models for a target by name, as the options say."""
    return _Drafts(machine_of(args, console), console, target)


class _Drafts:
    """Loads each draft model once, under the target's machine options; its context is its own."""

    def __init__(self, machine: Machine, console: Console, target: LoadedModel) -> None:
        self._machine = machine
        self._console = console
        self._target = target
        self._hosts: dict[str, LoadedModel] = {}

    def __call__(self, name: str) -> LoadedModel:
        from foredraft.runtime.loaded_model import open_draft_model

        if name not in self._hosts:
            self._hosts[name] = open_draft_model(name, self._machine, self._target, self._console.progress)
        return self._hosts[name]


def _document(certifier: Certifier, checks: Sequence[Check], prompts: int) -> dict[str, Any]:
    loaded, plan = certifier.loaded, certifier.plan
    return {
        "ok": all(check.ok for check in checks),
        "model": loaded.name,
        "system_fingerprint": loaded.fingerprint,
        "tier": loaded.tier,
        "dtype": loaded.dtype,
        "drafters": list(certifier.drafters),
        "rules": list(plan.rules),
        "prompts": prompts,
        "tokens": plan.tokens,
        "samples": plan.sampled,
        "seed": plan.seed,
        "checks": [check.to_dict() for check in checks],
    }


def _heading(certifier: Certifier, prompts: int) -> str:
    loaded, plan = certifier.loaded, certifier.plan
    many = "" if prompts == 1 else "s"
    return harmless(
        f"{loaded.name} · {loaded.tier} {loaded.dtype} · {prompts} prompt{many} · answers of {plan.tokens} tokens"
    )


def _lines(check: Check, console: Console) -> Iterator[str]:
    """Yield the table's row of a check, then what there is to say of a failure."""
    mark = _painted("ok    " if check.ok else "FAILED", console, good=check.ok)
    drafter = fit(harmless(check.drafter), _DRAFTER, tail=True)
    yield f"{mark}  {check.name:<{_NAME}}  {drafter}  {_figures(check)}".rstrip()
    if check.note is not None:
        yield f"        {harmless(' '.join(check.note.split()))}"
    for d in check.divergences[:_SHOWN]:
        where = f"{d.arm}, prompt {d.prompt + 1}, token {d.position + 1}"
        yield f"        {where}: top-2 margin {d.top2_margin:.2g}, gap {d.gap:.2g}: {d.verdict}"
    if len(check.divergences) > _SHOWN:
        yield f"        and {len(check.divergences) - _SHOWN} more"


def _figures(check: Check) -> str:
    f = check.figures
    if "identical" in f and f["answers"]:  # none where it broke at the first
        ties = f", {f['ties']} part at a tie" if f["ties"] else ""
        faults = f", {f['faults']} at a fault" if f["faults"] else ""
        rate = f", {f['mean_tokens_per_pass']:.2f} tokens a pass" if check.drafter != "none" else ""
        return f"{f['identical']} of {f['answers']} answers identical{ties}{faults}{rate}"
    if "p_value" in f:
        accepted = f"{f['accepted']} of {f['drafted']} guesses accepted"
        return f"p = {f['p_value']:.2g}, {f['tokens']} tokens, {accepted}"
    return ""


def _painted(text: str, console: Console, *, good: bool) -> str:
    if not console.coloured(console.stdout):
        return text
    many, few = ("38;5;29", "32") if good else ("1;38;5;166", "1;31")
    return f"\x1b[{many if console.many_colours else few}m{text}\x1b[0m"
