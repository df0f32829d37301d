"""The look of a trace's HTML file: four colours of writers on light and on dark, told apart by every colour vision."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1c1e21; --faint: #6b7077; --line: #d9dadd; --mark: #fff3c4;
  --c-drafter0: 38 115 209; --c-drafter1: 96 84 204; --c-drafter2: 0 128 106; --c-drafter3: 140 104 0;
  --c-correction: 214 92 12; --c-bonus: 168 62 160; --c-plain: 120 126 134; --vain: 160 165 172; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e7e9; --faint: #989da5; --line: #363a41; --mark: #45401f;
    --c-drafter0: 84 156 240; --c-drafter1: 146 134 246; --c-drafter2: 58 186 158; --c-drafter3: 214 172 60;
    --c-correction: 246 138 62; --c-bonus: 222 120 212; --c-plain: 150 156 166; --vain: 110 116 125; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; color: var(--faint); margin: 1.8rem 0 .5rem; }
.facts, .note { color: var(--faint); margin: .2rem 0 .6rem; max-width: 60rem; }
.prompt { white-space: pre-wrap; border-left: 3px solid var(--line); padding: .1rem 0 .1rem .8rem; max-height: 14rem;
  overflow: auto; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: .85rem; color: var(--faint);
  margin: 0 0 .8rem; }
.c-drafter0 { --c: var(--c-drafter0); } .c-drafter1 { --c: var(--c-drafter1); }
.c-drafter2 { --c: var(--c-drafter2); } .c-drafter3 { --c: var(--c-drafter3); }
.c-correction { --c: var(--c-correction); } .c-bonus { --c: var(--c-bonus); } .c-plain { --c: var(--c-plain); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 1.08rem; line-height: 2.05; max-width: 60rem; }
.t { background: rgb(var(--c) / calc(.14 + .62 * var(--s))); padding: .22em 0; }
.special { color: var(--faint); font-size: .8em; }
.r { color: inherit; text-decoration: none; border-bottom: 2px solid var(--faint); margin-right: 3px;
  padding-bottom: .2em; }
.r:hover { border-bottom-color: var(--ink); }
.r:hover .t { outline: 1px solid rgb(var(--c)); }
.strip { overflow-x: auto; padding-bottom: .4rem; margin-bottom: 1rem; }
svg { display: block; }
svg rect { fill: rgb(var(--c)); } svg .vain { fill: rgb(var(--vain) / .55); } svg line { stroke: var(--faint); }
svg a:hover rect { opacity: .65; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th { text-align: right; font-weight: 600; color: var(--faint); white-space: nowrap; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th:nth-child(4), th:nth-child(5), .guesses, .why { text-align: left; }
td.guesses, td.why { white-space: normal; }
td.guesses:nth-child(4) { min-width: 22rem; line-height: 1.9; }
.untold .why { display: none; }
tr:target { background: var(--mark); }
.g { display: inline-block; white-space: pre; border-radius: 3px; padding: 0 .25em; margin-right: 3px;
  line-height: 1.45; background: rgb(var(--c) / .22); }
.g i { font-style: normal; font-size: .78em; color: var(--faint); margin-left: .35em; }
.refused { background: none; box-shadow: inset 0 0 0 1px rgb(var(--c-correction) / .8); text-decoration: line-through;
  text-decoration-color: rgb(var(--c-correction)); }
.refused i { display: inline-block; text-decoration: none; }
.untested { background: none; color: var(--faint); padding: 0 .1em; }
.branch { color: var(--faint); font-size: .8em; font-style: italic; margin: 0 4px 0 2px; }
"""
