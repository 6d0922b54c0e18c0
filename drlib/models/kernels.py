"""CPU kernels of the policy's forward pass, compiled by numba.

A decode step of a small policy takes about a hundred torch operators. Most of them read and write
every number for one addition, so call overhead and memory traffic cost more than arithmetic. Here
everything between two matrix products is one loop over tokens, compiled at its first call and
cached on disk. The products stay torch's. Attention reads each request to its own length, where a
batched operator would read all rows to the longest one.

Arithmetic is float32, summation order is free, and the exponential is a polynomial (relative error
below 2e-7), because the C library's takes one number at a time. NaN is preserved. All kernels are
in this file: numba's cache is invalidated when the file of a function changes, but not when a
function that it calls does.

Single-threaded (a rank has one thread). `decoder.Decoder` is the same forward pass in torch.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_model

LANES = 16  # vector width: one AVX-512 register, two or four on other CPUs
_BLOCK = 64  # vocabulary entries per block of the search in `draw`
_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALLEST = np.float32(-88)  # e^-88 is below float32


def jit(function, inline=False):
    """Compile `function` at its first call, with an on-disk cache if a cache folder is writable.

    Args:
        inline: copy the function into the kernels that call it. Without this, a call runs the
            caller's own copy or, in the process that compiled both, the separate function. The two
            sum in different orders, so a run with an empty cache would differ in its last bits.
    """
    # Without `nnan` and `ninf`, which would not preserve NaN.
    fastmath = {"reassoc", "contract", "arcp", "nsz"}
    options = dict(fastmath=fastmath, error_model="numpy", nogil=True, forceinline=inline)
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no cache folder: compile in each process
        return njit(**options)(function)


def inlined(function):
    """Compile a function that kernels call; see `jit`."""
    return jit(function, inline=True)


# ---- vectors of LANES numbers. The compiler processes the remainder of a loop one by one, and the
# lengths of requests differ: that took half of attention's time.

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INDEX = ir.IntType(32)
_FREE = ("contract", "reassoc")  # fused multiply-add, any summation order


class _Lanes(types.Type):
    """numba's type of a vector of LANES float32."""

    def __init__(self):
        super().__init__(name=f"{LANES} x float32")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


_lanes = _Lanes()


def _address(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), _VECTOR.as_pointer())


@intrinsic
def load(_, array, index):
    """Return array[index : index + LANES] as a vector; contiguous array, no bounds check."""

    def code(context, builder, signature, arguments):
        value = builder.load(_address(context, builder, signature, arguments))
        value.align = 4
        return value

    return _lanes(types.float32[::1], types.intp), code


@intrinsic
def store(_, array, index, value):
    """Set array[index : index + LANES] to a vector; contiguous array, no bounds check."""

    def code(context, builder, signature, arguments):
        at = _address(context, builder, signature, arguments)
        builder.store(arguments[2], at).align = 4
        return context.get_dummy_value()

    return types.void(types.float32[::1], types.intp, _lanes), code


@intrinsic
def repeated(_, number):
    """Return a vector of equal numbers."""

    def code(context, builder, signature, arguments):
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], _INDEX(0))
        everywhere = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
        return builder.shuffle_vector(first, nothing, everywhere)

    return _lanes(types.float32), code


@intrinsic
def add_product(_, total, a, b):
    """Return total + a b, element by element."""

    def code(context, builder, signature, arguments):
        total, a, b = arguments
        return builder.fadd(total, builder.fmul(a, b, flags=_FREE), flags=_FREE)

    return _lanes(_lanes, _lanes, _lanes), code


@intrinsic
def _float_of_bits(_, bits):
    """Reinterpret an int32 as float32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


@inlined
def exp(x):
    """Return e^x for x <= 0 in float32, 0 below the smallest float32.

    x = n log 2 + r with |r| <= log(2) / 2: 2^n is written to the exponent bits, e^r is a polynomial
    of degree 7 (Cephes, expf).
    """
    if x < _SMALLEST:
        x = _SMALLEST
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))
    return (p * r * r + r + _ONE) * power


# ---- norms


@inlined
def _normalise_row(x_H, floor, out_H):
    total = floor
    for i in range(len(x_H)):
        total += x_H[i] * x_H[i]
    scale = _ONE / np.sqrt(total)
    for i in range(len(x_H)):
        out_H[i] = x_H[i] * scale


@jit
def normalise(x_TH, floor, out_TH):
    """RMSNorm divided by the square root of the width: x / sqrt(|x|^2 + floor).

    floor: width times epsilon.
    """
    for t in range(len(x_TH)):
        _normalise_row(x_TH[t], floor, out_TH[t])


# ---- attention


@jit
def rotate(qkv_TW, gain_hd, floor, cos_Cp, sin_Cp, rows_T, positions_T, keys, values):
    """Normalise and rotate queries and keys in place, and cache keys and values.

    Args:
        qkv_TW: queries, keys and values of each token, head by head.
        gain_hd: RMSNorm gains, one row per query head and then per key head.
        floor: width times epsilon of the norm.
        cos_Cp, sin_Cp: of the RoPE angle of coordinates 2p and 2p + 1 at each position.
        rows_T, positions_T: cache row and position of each token.
        keys: cache of one layer [rows, kv heads, blocks, d, LANES]; a block holds neighbouring
            positions, contiguous per coordinate.
        values: cache of one layer [rows, kv heads, blocks * LANES, width].
    """
    n_kv = keys.shape[1]
    n_rotated, dim = gain_hd.shape
    for t in range(len(rows_T)):
        row, position = rows_T[t], positions_T[t]
        cos, sin = cos_Cp[position], sin_Cp[position]
        for head in range(n_rotated):
            x, gain = qkv_TW[t, head * dim : (head + 1) * dim], gain_hd[head]
            total = floor
            for d in range(dim):
                total += x[d] * x[d]
            scale = _ONE / np.sqrt(total)
            for p in range(dim // 2):
                a, b = x[2 * p] * scale * gain[2 * p], x[2 * p + 1] * scale * gain[2 * p + 1]
                x[2 * p] = a * cos[p] - b * sin[p]
                x[2 * p + 1] = a * sin[p] + b * cos[p]
        block, lane = position // LANES, position % LANES
        for head in range(n_kv):
            key = (n_rotated - n_kv + head) * dim
            value = (n_rotated + head) * dim
            for d in range(dim):
                keys[row, head, block, d, lane] = qkv_TW[t, key + d]
                values[row, head, position, d] = qkv_TW[t, value + d]


@jit
def attend(qkv_TW, rows_T, positions_T, keys, values, out_TW):
    """Causal attention of each token over its cache row.

    Args:
        qkv_TW: scaled queries, head by head, as `rotate` leaves them.
        rows_T, positions_T, keys, values: as for `rotate`.
        out_TW: result, as wide as the queries.
    """
    _, n_kv, n_blocks, dim, _ = keys.shape
    context, width = values.shape[2:]
    n_heads = out_TW.shape[1] // dim
    group = n_heads // n_kv
    flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
    weights, read = np.empty(context, np.float32), np.empty(LANES, np.float32)
    for t in range(len(rows_T)):
        row, length = rows_T[t], positions_T[t] + 1
        for head in range(n_heads):
            query = qkv_TW[t, head * dim : (head + 1) * dim]
            cache_row = row * n_kv + head // group
            for block in range((length + LANES - 1) // LANES):
                at = (cache_row * n_blocks + block) * dim * LANES
                score = repeated(_ZERO)
                for d in range(dim):
                    score = add_product(score, repeated(query[d]), load(flat_keys, at + d * LANES))
                store(weights, block * LANES, score)
            total = _soften(weights[:length])
            for first in range(0, dim, LANES):
                at = cache_row * context * width + first
                even, odd = repeated(_ZERO), repeated(_ZERO)  # independent sums
                for j in range(0, length - 1, 2):
                    value = load(flat_values, at + j * width)
                    even = add_product(even, repeated(weights[j]), value)
                    value = load(flat_values, at + (j + 1) * width)
                    odd = add_product(odd, repeated(weights[j + 1]), value)
                if length % 2:
                    value = load(flat_values, at + (length - 1) * width)
                    even = add_product(even, repeated(weights[length - 1]), value)
                store(read, 0, add_product(even, odd, repeated(_ONE)))
                for d in range(min(LANES, dim - first)):
                    out_TW[t, head * dim + first + d] = read[d] / total


@inlined
def _soften(scores):
    """Replace the scores by e^(score - max) and return their sum."""
    top = scores[0]
    for j in range(len(scores)):
        top = max(top, scores[j])
    total = _ZERO
    for j in range(len(scores)):
        weight = exp(scores[j] - top)
        scores[j] = weight
        total += weight
    return total


# ---- experts


@jit
def route(h_TH, logits_TE, bias_E, experts_Tk, place_Tk, copies_MH, share_M, ends_E):
    """Select the experts of each token, and copy the token for each of them, sorted by expert.

    Args:
        h_TH: normalised hidden states.
        logits_TE: router logits.
        bias_E: router bias, added to the probability for the selection only.
        experts_Tk: result, the k best experts, best first.
        place_Tk: result, the index of each copy.
        copies_MH: result, the copies.
        share_M: result, probability of a copy's expert divided by the sum over the k.
        ends_E: result, end index of each expert's copies.
    """
    n_tokens, n_experts = logits_TE.shape
    k = experts_Tk.shape[1]
    probs_E = np.empty(n_experts, np.float32)
    weights_Tk = np.empty((n_tokens, k), np.float32)
    ends_E[:] = 0
    for t in range(n_tokens):
        probs_E[:] = logits_TE[t]
        probs_E /= _soften(probs_E)
        taken = _ZERO
        for i in range(k):
            expert = _best(probs_E, bias_E, experts_Tk[t, :i])
            experts_Tk[t, i] = expert
            weights_Tk[t, i] = probs_E[expert]
            taken += probs_E[expert]
            ends_E[expert] += 1
        weights_Tk[t] /= taken
    following_E = np.empty(n_experts, np.int64)  # next free index of each expert
    end = 0
    for e in range(n_experts):
        following_E[e] = end
        end += ends_E[e]
        ends_E[e] = end
    for t in range(n_tokens):
        for i in range(k):
            place = following_E[experts_Tk[t, i]]
            following_E[experts_Tk[t, i]] += 1
            place_Tk[t, i] = place
            share_M[place] = weights_Tk[t, i]
            copies_MH[place] = h_TH[t]


@inlined
def _best(probs_E, bias_E, taken):
    """Return the expert with the largest probability plus bias that is not in `taken`."""
    best = -1
    for e in range(len(probs_E)):
        free = True
        for other in taken:
            free = free and other != e
        if free and (best < 0 or probs_E[e] + bias_E[e] > probs_E[best] + bias_E[best]):
            best = e
    return best


@jit
def gate(gate_up_MJ, share_M, inner_MI):
    """Compute share * silu(gate) * up; the first half of each row is the gate."""
    width = inner_MI.shape[1]
    for m in range(len(inner_MI)):
        gates, ups = gate_up_MJ[m, :width], gate_up_MJ[m, width:]
        inner, share = inner_MI[m], share_M[m]
        for i in range(width):
            z = gates[i]
            small = exp(-abs(z))  # silu: z / (1 + e^-z), which is z e^z / (1 + e^z)
            scaled = share * ups[i] * z / (_ONE + small)
            inner[i] = scaled * small if z < _ZERO else scaled


@jit
def combine(x_TH, out_MH, place_Tk, floor, h_TH):
    """Add the outputs of each token's experts to x_TH, and write its norm to h_TH."""
    for t in range(len(x_TH)):
        x_H = x_TH[t]
        for i in range(place_Tk.shape[1]):
            out_H = out_MH[place_Tk[t, i]]
            for c in range(len(x_H)):
                x_H[c] += out_H[c]
        _normalise_row(x_H, floor, h_TH[t])


# ---- sampling


@jit
def draw(logits_NV, uniforms_N, temperature, ids_N, logps_N, entropies_N):
    """Sample one token per row with its log-probability and entropy; logits_NV is overwritten.

    Equivalent to `sampling.sample` without top-p.
    """
    n_vocabulary = logits_NV.shape[1]
    n_blocks = (n_vocabulary + _BLOCK - 1) // _BLOCK
    sums_B = np.empty(n_blocks, np.float64)  # cumulative weight at the end of each block
    scale = np.float32(1 / temperature) if temperature > 0 else _ONE
    for n in range(len(logits_NV)):
        z_V = logits_NV[n]
        top = z_V[0]
        for v in range(n_vocabulary):
            top = max(top, z_V[v])
        likeliest = 0
        if temperature == 0:
            while likeliest < n_vocabulary - 1 and z_V[likeliest] != top:
                likeliest += 1
        total, moment = 0.0, 0.0  # of e^(z - top), and of (z - top) e^(z - top)
        for b in range(n_blocks):
            first = b * _BLOCK
            block = z_V[first : first + _BLOCK]
            weight, weighted = _ZERO, _ZERO
            for i in range(len(block)):
                shifted = (block[i] - top) * scale
                e = exp(shifted)
                block[i] = e
                weight += e
                weighted += e * shifted
            total += weight
            moment += weighted
            sums_B[b] = total
        token = likeliest if temperature == 0 else _search(z_V, sums_B, uniforms_N[n] * total)
        ids_N[n] = token
        logps_N[n] = np.log(z_V[token] / total)
        entropies_N[n] = np.log(total) - moment / total


@inlined
def _search(weights_V, sums_B, target):
    """Return the first token whose cumulative weight exceeds `target`."""
    b = 0
    while b < len(sums_B) - 1 and sums_B[b] <= target:
        b += 1
    first = b * _BLOCK
    block = weights_V[first : first + _BLOCK]
    before = sums_B[b - 1] if b else 0.0
    best = 0
    for i in range(len(block)):
        before += block[i]
        if before > target:
            return first + i
        if block[i] > block[best]:
            best = i
    return first + best  # rounding: take the block's most likely token
