"""How far the heads' laws lie from the target's: lambda KL + (1 - lambda) TV (arXiv 2602.23881).

The target's law is known at its likeliest tokens. Their KL is a cross-entropy, and TV is 1 less the acceptance, the sum
of min(p, q). lambda = exp(-3 acceptance): KL while little is accepted, for TV alone trains poorly from nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS: Final = 256  # scored at a time: their logits stay in the cache


@dataclass(frozen=True, slots=True)
class Ends:
    """What of the target lies before and behind what is trained; it is frozen."""

    embedding: Tensor  # [V, H] bfloat16
    head: Tensor  # [Vd, H] bfloat16, its output rows of the tokens that may be guessed
    scale: float = 1.0  # of embeddings
    divisor: float = 1.0  # of logits, before the cap
    cap: float = 0.0  # logits become cap * tanh(logits / cap); 0 is none

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., H] of tokens."""
        rows = F.embedding(tokens, self.embedding)
        return rows if self.scale == 1.0 else rows.float() * self.scale

    def logits(self, s: Tensor) -> Tensor:
        """Return the logits [n, Vd] of states [n, H], float32 or wider."""
        logits = s @ self.head.T
        logits = logits.float() if logits.dtype is torch.bfloat16 else logits
        if self.divisor != 1.0:
            logits = logits / self.divisor
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits

    def back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Return the gradient [n, H] of states from that of their logits [n, Vd], which it may overwrite."""
        if self.cap:
            gradient *= 1 - (logits / self.cap).square()
        if self.divisor != 1.0:
            gradient /= self.divisor
        return gradient.to(self.head.dtype) @ self.head


class _Loss(torch.autograd.Function):
    """Works out the gradient with the loss, chunk by chunk, because the head is frozen and the logits are large."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, ends: Ends, ids: Tensor, p: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient = torch.empty_like(s)
        losses, acceptances, agreements = (p.new_empty(len(s)) for _ in range(3))
        for at in range(0, len(s), ROWS):
            part = slice(at, at + ROWS)
            logits = ends.logits(s[part])  # [n, Vd]
            best, likeliest = logits.max(-1)
            q = (logits - best[:, None]).exp_()
            total = q.sum(-1, keepdim=True)
            chosen = logits.gather(1, ids[part]) - best[:, None] - total.log()  # log q at the target's likeliest
            known = p[part]
            at_chosen = chosen.exp()
            acceptance = torch.minimum(known, at_chosen).sum(-1)
            balance = torch.exp(-3.0 * acceptance)
            losses[part] = balance * -(known * chosen).sum(-1) + (1 - balance) * (1 - acceptance)
            acceptances[part] = acceptance
            agreements[part] = (likeliest == ids[part, 0]).to(p.dtype) * (known[:, 0] > 0)
            lacking = at_chosen * (at_chosen < known)  # where TV still pulls
            scale = balance * known.sum(-1) + (1 - balance) * lacking.sum(-1)
            q *= (scale[:, None] / total) * weight[part, None]
            pull = (balance[:, None] * known + (1 - balance[:, None]) * lacking) * weight[part, None]
            q.scatter_add_(1, ids[part], -pull)
            gradient[part] = ends.back(q, logits)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(acceptances, agreements)
        return losses @ weight, acceptances, agreements

    @staticmethod
    def backward(ctx: Any, outer: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer, None, None, None, None


def weighted_loss(s: Tensor, ends: Ends, ids: Tensor, p: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted sum of the rows' losses, and each row's acceptance and agreement [N].

    ``s`` [N, H] are the states that the target's head reads; ``ids`` [N, K] are the target's likeliest tokens as rows
    of that head, likeliest first, and ``p`` [N, K] their probabilities, 0 for a token that it has no row for.
    Acceptance is the sum of min(p, q) over these tokens, agreement 1 where both laws have the same likeliest.
    """
    out: tuple[Tensor, Tensor, Tensor] = _Loss.apply(s, ends, ids, p, weight)  # type: ignore[no-untyped-call]
    return out
