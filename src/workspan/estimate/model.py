"""What to expect at a size, as a distribution, from the measurements so far.

All of it works on logarithms, so that errors are relative and nothing turns negative. A *law* says how time grows with
size over the whole range; a *kernel* says which measurements resemble the one asked for: near in size, near in time,
or with the same predecessor. A law with a kernel is a candidate: it answers with the law's value, shifted by what the
law missed by at the resembling measurements. Candidates are weighted by how well each would have answered for every
measurement had that one been left out; the mixture of their answers is the distribution.

Arrays hold the ``count`` measurements in the order in which they were made, then the places asked about: ``rows`` in
all. For a row that is a measurement, everything is as if that measurement had not been made. The constants were chosen
once for all sources of recorded series, each checked with one source left out; see the page on the method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workspan.estimate.curve import Floats

__all__ = ["predictive"]

SHARES = np.concatenate(([0.0], 2.0 ** np.arange(-14.0, 15.0)))  # constant costs, in what a median size costs
POWERS = np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0])
FALLING = np.array([-0.25, -0.5, -1.0])  # more of them where growth is not expected
CONSTANT_PENALTY = 0.3  # a constant cost must save this part of a usual miss
POWER_PENALTY = 0.5  # and a power other than 1 this, for each unit it is away from 1
PLAIN_PENALTY = 0.5  # and a line in the size itself, where another order was declared, this
RECENT = 12  # measurements that the law "recent" is fitted to
LOCAL_WIDTH, LOCAL_RIDGE = 0.5, 0.3  # of the law "local": log distance, and measurements that hold it to no tilt

EVERYWHERE = 1e9
SAME_SIZE, ANY_SIZE = 0.002, EVERYWHERE
WIDTHS = (SAME_SIZE, 0.15, 0.6, ANY_SIZE)  # log distances in size at which resemblance falls to 1/e
AGES = (3.0, EVERYWHERE)  # the same in measurements
NO_CONTEXT, ONE_BEFORE, TWO_BEFORE = 0, 1, 2
KERNELS = [(width, age, NO_CONTEXT) for width in WIDTHS for age in AGES] + [
    (width, EVERYWHERE, context) for width in (SAME_SIZE, ANY_SIZE) for context in (ONE_BEFORE, TWO_BEFORE)
]
CONTEXT_FROM = 8  # measurements; fewer show no sequence
CONTEXT_WIDTH = 0.1  # log distance in size and in miss at which two predecessors differ
UNLIKE = 1e-4  # resemblance of measurements whose predecessors differ
LAW_WEIGHT = 0.03  # of the law alone, in measurements of the very size made now
CONTEXT_LAW_WEIGHT = 0.05

HALF = 15.0  # measurements after which a miss counts half
TRUST = 0.5  # how fast a candidate's weight falls with its misses
SMALL = 0.01  # log seconds; smaller misses are not told apart
EVEN = 0.1  # share of the weight that all candidates keep
LAW_PENALTY = {"affine": 0.0, "any": 0.0, "recent": 0.3, "local": 0.3}
CONTEXT_PENALTY = 1.0


@dataclass(frozen=True)
class Law:
    """A law's value at each measurement (count,) if that is left out, and at each row (rows,) if none is."""

    without: Floats
    full: Floats


def predictive(n: Floats, x: Floats, y: Floats, *, falling: bool) -> tuple[Floats, Floats]:
    """Return possible log times for each row, and their weights, both (rows, laws * (count + 1)).

    Parameters
    ----------
    n
        N of each row, (rows,).
    x
        Logarithm of the place of each row, (rows,).
    y
        Logarithm of what was measured, (count,).
    falling
        Whether laws may fall with growing size.
    """
    count, rows = len(y), len(x)
    gap = x[None, :count] - x[:, None]
    others = np.ones((rows, count))
    np.fill_diagonal(others, 0.0)
    laws = fit_laws(n, x, y, gap, others, falling)
    weights, context = kernel_weights(y - laws["any"].full[:count], gap, others)
    recency = 0.5 ** ((count - 1 - np.arange(count)) / HALF)
    losses, atoms, penalties = [], [], []
    for name, law in laws.items():
        miss = np.append(y - law.full[:count], 0.0)
        order = np.argsort(miss, kind="stable")
        grown = np.cumsum(weights[:, :count][..., order], -1)
        median = miss[order][np.argmax(grown >= 0.5 * grown[..., -1:], -1)]
        losses.append((np.abs(median + law.without - y) * recency).sum(1) / recency.sum())
        penalties.append(LAW_PENALTY[name] + CONTEXT_PENALTY * context)
        atoms.append(np.concatenate((law.without, law.full[count:]))[:, None] + miss)
    loss, penalty = np.array(losses), np.array(penalties)
    effective = recency.sum() ** 2 / (recency**2).sum()
    share = normalised(-TRUST * effective * (loss - loss.min()) / (loss.min() + SMALL) - penalty)
    share = (1.0 - EVEN) * share + EVEN * normalised(-penalty)
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("lk,krj->rlj", share, weights)
    return np.concatenate(atoms, 1), mixed.reshape(rows, -1)


def normalised(log_weights: Floats) -> Floats:
    """Return weights that sum to 1."""
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def fit_laws(n: Floats, x: Floats, y: Floats, gap: Floats, others: Floats, falling: bool) -> dict[str, Law]:
    """Fit all laws: affine in N; that or a power of the size; the same to the latest only; and tilted near each row."""
    count = len(y)
    scale = float(np.median(n[:count])) or 1.0
    shares = np.append(SHARES, affine_share(n[:count] / scale, y))
    affine = np.log(np.maximum(shares[:, None] + n / scale, 1e-12))
    affine_penalty = CONSTANT_PENALTY * (shares > 0.0)
    powers = np.append(POWERS, FALLING) if falling else POWERS
    centred = x - np.median(x[:count])
    plain = np.log(np.maximum(SHARES[:, None] + np.exp(np.minimum(centred, 600.0)), 1e-12))  # whatever the order
    shapes = np.vstack((affine, powers[:, None] * centred, plain))
    penalty = np.concatenate(
        (affine_penalty, POWER_PENALTY * np.abs(powers - 1.0), PLAIN_PENALTY + CONSTANT_PENALTY * (SHARES > 0.0))
    )
    laws = {"affine": choose_shape(affine, y, affine_penalty), "any": choose_shape(shapes, y, penalty)}
    whole = laws["any"]
    early = count - RECENT
    if early > 3:
        late = choose_shape(shapes[:, early:], y[early:], penalty, rest=shapes[:, :early])
        laws["recent"] = Law(np.concatenate((late.full[:early], late.without)), late.full)
    tilt = local_line(y - whole.full[:count], gap, others)
    laws["local"] = Law(whole.without + tilt[:count], whole.full + tilt)
    top = int(np.argmax(n[:count]))
    if n[top] > 0.0:  # E84: beyond the largest N no law falls, and none grows faster than in proportion to N
        rise = np.log(np.maximum(n / n[top], 1.0))
        for law in laws.values():
            np.copyto(law.full, np.clip(law.full, law.full[top], law.full[top] + rise), where=n > n[top])
    return laws


def choose_shape(shapes: Floats, y: Floats, penalty: Floats, *, rest: Floats | None = None) -> Law:
    """Choose one of some shapes by the sum of its absolute misses, each shape with the shift that is best for it.

    Parameters
    ----------
    shapes
        Log times without the shift, (shapes, rows).
    y
        What was measured, (count,).
    penalty
        For each shape, in usual misses.
    rest
        The shapes at rows before these, for which only the value of the chosen one is wanted.
    """
    count = len(y)
    miss = y - shapes[:, :count]
    ordered = np.sort(miss, 1)
    rank = np.argsort(np.argsort(miss, 1, kind="stable"), 1)
    # the median without one of them is found from the order of all
    middle = count // 2
    if count % 2:
        at = ordered[:, [middle]]
        under, over = ordered[:, [max(middle - 1, 0)]], ordered[:, [min(middle + 1, count - 1)]]
        without = np.where(rank < middle, at + over, np.where(rank > middle, at + under, under + over)) / 2
        median = at[:, 0]
    else:
        under, over = ordered[:, [middle - 1]], ordered[:, [middle]]
        without = np.where(rank < middle, over, under)
        median = (under[:, 0] + over[:, 0]) / 2
    off = np.abs(miss - median[:, None])
    total = off.sum(1)
    least = float(total.min())
    # exact data need no prior: the second term, which speaks for few and therefore small misses, fades out with them
    total += penalty * (least / count + 0.02 * min(1.0, 1e3 * least))
    best, each = np.argmin(total[:, None] - off, 0), np.arange(count)
    chosen = int(np.argmin(total))
    full = shapes[chosen] if rest is None else np.concatenate((rest[chosen], shapes[chosen]))
    return Law(shapes[best, each] + without[best, each], full + median[chosen])


def affine_share(n: Floats, y: Floats) -> float:
    """Return a / b of the line a + b n that fits exp(y) best in relative squares, a and b at least 0."""
    weight = np.exp(np.maximum(y.min() - y, -300.0))
    rows = np.stack((weight, weight * n))
    (g00, g01), (_, g11) = rows @ rows.T
    h0, h1 = rows.sum(1)
    constant, slope = h0 * g11 - h1 * g01, h1 * g00 - h0 * g01
    return float(constant / slope) if slope > 1e-12 * h1 * g00 and constant > 0.0 else 0.0


def local_line(miss: Floats, gap: Floats, others: Floats) -> Floats:
    """Fit a line to the misses (count,) around each row, (rows,); misses far from it are drawn in once."""
    count = len(miss)
    weights = np.exp(-np.abs(gap) / LOCAL_WIDTH) * others
    tilted = weights * gap
    s0 = weights.sum(1) + LOCAL_RIDGE
    s1 = tilted.sum(1)
    s2 = (tilted * gap).sum(1) + 2.0 * LOCAL_RIDGE * LOCAL_WIDTH**2
    reach = 2.0 * (1.4826 * float(np.median(np.abs(miss))) + 1e-3)
    kept, line = miss, miss
    for _ in range(2):
        line = (s2 * (weights @ kept) - s1 * (tilted @ kept)) / np.maximum(s0 * s2 - s1 * s1, 1e-12)
        kept = np.clip(miss, line[:count] - reach, line[:count] + reach)
    return np.asarray(line)


def kernel_weights(miss: Floats, gap: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Weigh the measurements for each row by each kernel.

    Returns
    -------
    weights
        (kernels, rows, count + 1); the last column is the law itself.
    context
        1 for each kernel that looks at predecessors, else 0.
    """
    rows, count = gap.shape
    place = np.minimum(np.arange(rows), count)  # in time; what is asked about comes next
    age = np.abs(place[:, None] - np.arange(count))
    distance = np.abs(gap)
    near = {width: np.exp(-distance / width) for width in WIDTHS}
    fresh = {span: np.exp(-age / span) for span in AGES}
    unlike = np.full((rows, count), 9.0)  # how much the predecessors differ; the first has none
    before = place[1:] - 1
    unlike[1:, 1:] = (np.abs(miss[before, None] - miss[:-1]) + distance[before, :-1]) / CONTEXT_WIDTH
    twice = np.full((rows, count), 9.0)
    twice[1:, 1:] = 0.7 * (unlike[1:, 1:] + unlike[before, :-1])
    like = {ONE_BEFORE: np.exp(-unlike) + UNLIKE, TWO_BEFORE: np.exp(-twice) + UNLIKE}
    kernels = [kernel for kernel in KERNELS if kernel[2] == NO_CONTEXT or count >= CONTEXT_FROM]
    weights = np.empty((len(kernels), rows, count + 1))
    least = 1e-9 * np.exp(-distance)  # where nothing is near, the nearest still speak
    for i, (width, span, context) in enumerate(kernels):
        weight = near[width] * fresh[span]
        if context:
            weight *= like[context]
        weights[i, :, :count] = (weight + least) * others
        weights[i, :, count] = CONTEXT_LAW_WEIGHT if context else LAW_WEIGHT
    return weights, np.array([float(context > 0) for _, _, context in kernels])
