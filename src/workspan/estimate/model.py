"""The fit: from measurements to a curve.

All of it works on logarithms, so that errors are relative and nothing turns negative. A *law* says how time grows with
size over the whole range; a *kernel* says which earlier measurements resemble the one asked for: near in size, near in
time, or with the same predecessor. A law with a kernel is a candidate: it answers with the law's value, shifted by
the weighted median of what the law missed by at the resembling measurements. Candidates are weighted by how well each
would have predicted every measurement from the others; together they give a distribution of the time to expect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workspan.estimate.curve import Floats

__all__ = ["predictive"]

SHARES = np.concatenate(([0.0], 2.0 ** np.arange(-14.0, 15.0)))  # of constant cost, in costs of a median size
POWERS = np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0])
FALLING = np.array([-0.25, -0.5, -1.0])  # allowed where growth is not expected
CONSTANT_PENALTY = 0.3  # the declared order without constant cost is taken unless data speak against it
POWER_PENALTY = 0.5  # per unit of distance from proportionality
RECENT = 12
PRIOR = 0.03  # weight of the law itself, in measurements of exactly this size made now
CONTEXT_PRIOR = 0.05
CONTEXT_FROM = 8  # measurements; fewer show no sequence
CONTEXT_SCALE = 0.1
EPS = 1e-4
HALF = 15.0  # measurements after which a miss counts half
FLOOR = 0.01
BETA = 1.0
LOCAL_WIDTH, LOCAL_RIDGE = 0.5, 0.3
EVERYWHERE = 1e9
WIDTHS = (0.01, 0.15, 0.6, EVERYWHERE)
AGES = (3.0, 12.0, EVERYWHERE)
KERNELS = [(w, a, 0) for w in WIDTHS for a in AGES] + [
    (w, EVERYWHERE, c) for w in (0.01, 0.6, EVERYWHERE) for c in (1, 2)
]
LAW_PENALTY = {"affine": 0.0, "constant": 2.0, "any": 0.0, "recent": 0.3, "local": 0.3}
CONTEXT_PENALTY = 1.0


@dataclass(frozen=True)
class Law:
    """A law's value at each measurement if that one is left out, and at each measurement and node if none is."""

    without: Floats
    full: Floats


def fit_shape(shapes: Floats, y: Floats, penalty: Floats) -> Law:
    """Choose among shapes (S, n + m), each with a free shift, by the sum of absolute misses of y (n,)."""
    n = len(y)
    miss = y - shapes[:, :n]
    rank = np.argsort(np.argsort(miss, 1, kind="stable"), 1)
    ordered = np.sort(miss, 1)
    middle = n // 2
    if n % 2:
        at = ordered[:, [middle]]
        under, over = ordered[:, [max(middle - 1, 0)]], ordered[:, [min(middle + 1, n - 1)]]
        median = at[:, 0]
        others = np.where(rank < middle, at + over, np.where(rank > middle, at + under, under + over)) / 2
    else:
        under, over = ordered[:, [middle - 1]], ordered[:, [middle]]
        median = (under[:, 0] + over[:, 0]) / 2
        others = np.where(rank < middle, over, under)
    off = np.abs(miss - median[:, None])
    total = off.sum(1)
    total = total + penalty * (total.min() / n + 0.02 * min(1.0, total.min() * 1e3))
    best = np.argmin(total[:, None] - off, 0)
    each = np.arange(n)
    chosen = int(np.argmin(total))
    return Law(shapes[best, each] + others[best, each], shapes[chosen] + median[chosen])


def affine_share(n: Floats, y: Floats) -> float:
    """Return a/b of the line a + b n that fits y in relative error by least squares, a and b at least 0."""
    w = np.exp(y.min() - y)  # proportional to 1 / dt
    a = np.stack((w, w * n), 1)
    t = np.exp(y - y.min()) * w
    g = a.T @ a
    h = a.T @ t
    det = g[0, 0] * g[1, 1] - g[0, 1] ** 2
    if det <= 1e-14 * g[0, 0] * g[1, 1]:
        return 0.0
    const = (h[0] * g[1, 1] - h[1] * g[0, 1]) / det
    slope = (h[1] * g[0, 0] - h[0] * g[0, 1]) / det
    return float(const / slope) if slope > 0.0 and const > 0.0 else 0.0


def local_line(miss: Floats, gap: Floats, mask: Floats) -> Floats:
    """Fit a line to the misses (n,) around each row's place; *gap* (rows, n) is the signed log distance."""
    n = len(miss)
    weights = np.exp(-np.abs(gap) / LOCAL_WIDTH) * mask
    tilt = weights * gap
    s0 = weights.sum(1) + LOCAL_RIDGE
    s1 = tilt.sum(1)
    s2 = (tilt * gap).sum(1) + 2 * LOCAL_RIDGE * LOCAL_WIDTH**2
    scale = 1.4826 * float(np.median(np.abs(miss))) + 1e-3
    kept = miss
    for _ in range(2):
        line = (s2 * (weights @ kept) - s1 * (tilt @ kept)) / np.maximum(s0 * s2 - s1 * s1, 1e-12)
        kept = np.clip(miss, line[:n] - 2 * scale, line[:n] + 2 * scale)
    return np.asarray(line)


def laws_of(n: Floats, x: Floats, y: Floats, gap: Floats, mask: Floats, falling: bool) -> dict[str, Law]:
    """Fit all laws. Arrays hold the measurements, then the nodes."""
    count = len(y)
    scale = float(np.median(n[:count])) or 1.0
    shares = np.append(SHARES, affine_share(n[:count] / scale, y))
    affine = np.log(np.maximum(shares[:, None] + n / scale, 1e-12))
    powers = np.append(POWERS, FALLING) if falling else POWERS
    power = powers[:, None] * (x - np.median(x[:count]))
    affine_penalty = CONSTANT_PENALTY * (shares > 0)
    every, penalty = np.vstack((affine, power)), np.append(affine_penalty, POWER_PENALTY * np.abs(powers - 1.0))
    laws = {
        "affine": fit_shape(affine, y, affine_penalty),
        "constant": fit_shape(power[:1], y, np.zeros(1)),
        "any": fit_shape(every, y, penalty),
    }
    whole = laws["any"]
    laws["recent"] = whole
    if count > RECENT + 3:
        late = slice(count - RECENT, None)
        recent = fit_shape(every[:, late], y[late], penalty)
        # the chosen shape over all: found again by its values, as fit_shape sees only the late part
        misses = y[late] - every[:, late][:, :RECENT]
        off = np.abs(misses - np.median(misses, 1)[:, None]).sum(1)
        best = int(np.argmin(off + penalty * (off.min() / RECENT + 0.02 * min(1.0, off.min() * 1e3))))
        full = every[best] + np.median(misses[best])
        laws["recent"] = Law(np.concatenate((full[: count - RECENT], recent.without)), full)
    line = local_line(y - whole.full[:count], gap, mask)
    laws["local"] = Law(whole.without + line[:count], whole.full + line)
    top = int(np.argmax(n[:count]))
    if n[top] > 0:
        rise = np.log(np.maximum(n / n[top], 1.0))
        for law in laws.values():
            beyond = np.clip(law.full, law.full[top], law.full[top] + rise)
            np.copyto(law.full, beyond, where=n > n[top])
    return laws


def kernel_weights(x: Floats, y: Floats, gap: Floats, mask: Floats, miss: Floats) -> tuple[Floats, Floats]:
    """Weigh measurements (n,) for each row by every kernel: (K, rows, n + 1), the last column being the law itself."""
    n, rows = len(y), len(x)
    time = np.arange(n)
    age = np.abs(np.minimum(np.arange(rows), n)[:, None] - time)
    distance = np.abs(gap)
    near = {w: np.exp(-distance / w) for w in WIDTHS}
    fresh = {a: np.exp(-age / a) for a in AGES}
    same = np.full((rows, n), 9.0)
    before = np.minimum(np.arange(rows), n) - 1  # the measurement before each row; before a node: the last
    same[1:, 1:] = np.abs(miss[before[1:], None] - miss[:-1]) / CONTEXT_SCALE + distance[before[1:], :-1] / 0.1
    twice = np.full((rows, n), 9.0)
    twice[1:, 1:] = 0.7 * (same[1:, 1:] + same[before[1:], :-1])
    context = (None, np.exp(-same) + EPS, np.exp(-twice) + EPS)
    kernels = [k for k in KERNELS if not k[2] or n >= CONTEXT_FROM]
    weights = np.empty((len(kernels), rows, n + 1))
    rest = 1e-9 * np.exp(-distance)
    for i, (w, a, c) in enumerate(kernels):
        weight = near[w] * fresh[a]
        if c:
            weight = weight * context[c]
        weights[i, :, :n] = (weight + rest) * mask
        weights[i, :, n] = CONTEXT_PRIOR if c else PRIOR
    return weights, np.array([CONTEXT_PENALTY * (c > 0) for _, _, c in kernels])


def predictive(n: Floats, x: Floats, y: Floats, *, falling: bool) -> tuple[Floats, Floats]:
    """Return the atoms of the expected log time of each row and their weights, both (rows, laws * (count + 1))."""
    count, rows = len(y), len(x)
    gap = x[None, :count] - x[:, None]
    mask = np.ones((rows, count))
    mask[np.arange(count), np.arange(count)] = 0.0
    laws = laws_of(n, x, y, gap, mask, falling)
    weights, kernel_penalty = kernel_weights(x, y, gap, mask, y - laws["affine"].full[:count])
    recency = 0.5 ** ((count - 1 - np.arange(count)) / HALF)
    effective = recency.sum() ** 2 / (recency**2).sum()
    losses, atoms, penalties = [], [], []
    for name, law in laws.items():
        miss = np.append(y - law.full[:count], 0.0)
        order = np.argsort(miss, kind="stable")
        grown = np.cumsum(weights[:, :count][..., order], -1)
        middle = miss[order][np.argmax(grown >= 0.5 * grown[..., -1:], -1)]
        losses.append(np.abs(middle + law.without - y) @ recency / recency.sum())
        penalties.append(LAW_PENALTY[name] + kernel_penalty)
        base = np.concatenate((law.without, law.full[count:]))
        atoms.append(base[:, None] + miss)
    loss = np.array(losses)
    odds = -BETA * effective * (loss - loss.min()) / (loss.min() + FLOOR) - np.array(penalties)
    share = np.exp(odds - odds.max())
    share /= share.sum()
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("lk,krj->rlj", share, weights, optimize=False).reshape(rows, -1)
    return np.concatenate(atoms, 1), mixed
