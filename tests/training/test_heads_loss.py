"""The loss and its hand-made gradient against autograd of the plain formula."""

from __future__ import annotations

import pytest
import torch

from foredraft.training.heads.loss import Ends, weighted_loss

N, H, VD, K = 37, 12, 50, 7


def case(dtype: torch.dtype, concentrated: bool) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(4)
    s = torch.randn((N, H), generator=draw, dtype=torch.float64)
    head = torch.randn((VD, H), generator=draw, dtype=torch.float64)
    ids = torch.stack([torch.randperm(VD, generator=draw)[:K] for _ in range(N)])
    if concentrated:  # the target agrees with the heads, so acceptance is high and lambda small
        ids[:, 0] = (s @ head.T).argmax(-1)
        ids[:, 1:] = torch.where(ids[:, 1:] == ids[:, :1], (ids[:, 1:] + 1) % VD, ids[:, 1:])
    p = torch.rand((N, K), generator=draw, dtype=torch.float64).sort(-1, descending=True)[0]
    p = 0.95 * p / p.sum(-1, keepdim=True)
    known = torch.rand((N, K), generator=draw) < 0.8  # of the others the head has no row
    ids, p = ids * known, p * known
    weight = torch.rand(N, generator=draw, dtype=torch.float64)
    return s.to(dtype), head.to(dtype), ids, p.to(dtype), weight.to(dtype)


def dense(s: torch.Tensor, ends: Ends, ids: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = s @ ends.head.T / ends.divisor
    if ends.cap:
        logits = torch.tanh(logits / ends.cap) * ends.cap
    full = torch.zeros_like(logits).scatter_add(1, ids, p)
    log_q = logits.log_softmax(-1)
    acceptance = torch.minimum(full, log_q.exp()).sum(-1)
    balance = torch.exp(-3 * acceptance.detach())
    return balance * -(full * log_q).sum(-1) + (1 - balance) * (1 - acceptance), acceptance


@pytest.mark.parametrize("concentrated", [False, True])
@pytest.mark.parametrize(("divisor", "cap"), [(1.0, 0.0), (2.5, 0.0), (1.0, 3.0), (0.5, 4.0)])
def test_the_gradient_is_the_formulas(concentrated: bool, divisor: float, cap: float) -> None:
    s, head, ids, p, weight = case(torch.float64, concentrated)
    ends = Ends(head, head, 1.0, divisor, cap)
    mine, theirs = s.clone().requires_grad_(), s.clone().requires_grad_()
    loss, acceptance, agreement = weighted_loss(mine, ends, ids, p, weight)
    wanted, accepted = dense(theirs, ends, ids, p)
    (3.0 * loss).backward()
    (3.0 * (wanted @ weight)).backward()
    torch.testing.assert_close(loss, (wanted @ weight).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(acceptance, accepted.detach(), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-13)
    likeliest = ends.logits(s).argmax(-1)
    assert agreement.tolist() == [
        float(a == b and c > 0) for a, b, c in zip(likeliest, ids[:, 0], p[:, 0], strict=True)
    ]


def test_float32_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    s, head, ids, p, weight = case(torch.float32, True)
    ends, grads = Ends(head, head, 1.0, 1.0, 5.0), []
    for rows in (256, 8):
        monkeypatch.setattr("foredraft.training.heads.loss.ROWS", rows)
        mine = s.clone().requires_grad_()
        weighted_loss(mine, ends, ids, p, weight)[0].backward()
        grads.append(mine.grad)
    theirs = s.double().requires_grad_()
    (dense(theirs, Ends(head.double(), head.double(), 1.0, 1.0, 5.0), ids, p.double())[0] @ weight.double()).backward()
    for grad in grads:
        torch.testing.assert_close(grad.double(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_embeddings_are_scaled_as_the_targets() -> None:
    table = torch.randn((5, 4), generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = torch.tensor([[1, 4]])
    torch.testing.assert_close(Ends(table, table, 3.0).embedded(tokens), table[tokens].float() * 3)
