#!/usr/bin/env python3
"""Prints docs/gpu-roofline.md: for each kernel of a step, the least time that memory, tensor cores or NVLink allow, from the bytes and flops that the
comments of the kernels state (device/cuda/kernels, comm/cuda/kernels).

    scripts/roofline.py > docs/gpu-roofline.md"""

from collections import namedtuple

Gpu = namedtuple("Gpu", "name bandwidth flops nvlink")  # bytes/s of memory, bf16 flop/s (dense), bytes/s of NVLink into a GPU
Model = namedtuple("Model", "name layers hidden heads kv_heads head_dim feed_forward vocabulary ranks")
Cost = namedtuple("Cost", "bytes flops linked", defaults=(0, 0))

GPUS = (Gpu("H100 SXM", 3.35e12, 989e12, 450e9), Gpu("H200", 4.8e12, 989e12, 450e9))
MODELS = (
    Model("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, 1),
    Model("Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128256, 8),
)
TOKENS = (1, 64)
CONTEXT = 1024  # tokens of each sequence that are in the cache
BF16 = 2
FP32 = 4
WEIGHT_BITS = {"BF16": 16, "Q8_0": 8.5, "Q4_1": 5.0}


def linear(rows, columns, tokens, bits):
    """linear_decode, linear_prefill: weights once for every 64 tokens, activations from L2."""
    passes = -(-tokens // 64)
    return Cost(passes * rows * columns * bits / 8 + tokens * (columns * BF16 + rows * FP32), 2 * rows * columns * tokens)


def norm(hidden, tokens):
    """norm_rows with a delta: x read and written, delta, weight, 16-bit out."""
    return Cost(tokens * hidden * (FP32 * 4 + BF16), 6 * hidden * tokens)


def reduce_norm(hidden, tokens, ranks):
    """one_shot_norm: this rank's roots to its exchange memory, the peers' over NVLink, then as norm_rows."""
    count = hidden * tokens
    roots = 1.0  # of a rank: heads and columns of these models divide evenly, into whole subtrees
    return Cost(norm(hidden, tokens).bytes + 2 * FP32 * roots * count, norm(hidden, tokens).flops, FP32 * roots * (ranks - 1) * count)


def step(model, tokens, bits):
    """[(kernel, runs, cost of one)] on one rank, for one decode step of `tokens` sequences."""
    heads, kv_heads = model.heads // model.ranks, max(1, model.kv_heads // model.ranks)
    inner, vocabulary = model.feed_forward // model.ranks, model.vocabulary // model.ranks
    query, key_value = heads * model.head_dim, kv_heads * model.head_dim
    qkv = query + 2 * key_value
    cache = 2 * key_value * CONTEXT * BF16
    add_norm = ("reduce_add_norm", reduce_norm(model.hidden, tokens, model.ranks))
    if model.ranks == 1:
        add_norm = ("add_rms_norm", norm(model.hidden, tokens))
    layer = [
        ("linear qkv", linear(qkv, model.hidden, tokens, bits)),
        ("rotate_and_append", Cost(tokens * (8 * query + (4 + BF16) * 2 * key_value), 6 * tokens * (query + key_value))),
        ("attention_decode", Cost(tokens * (cache + (4 + BF16) * query), 4 * tokens * CONTEXT * query)),
        ("linear o_proj", linear(model.hidden, query, tokens, bits)),
        add_norm,
        ("linear gate, up", linear(2 * inner, model.hidden, tokens, bits)),
        ("swiglu", Cost(tokens * inner * (2 * FP32 + BF16), 22 * tokens * inner)),
        ("linear down_proj", linear(model.hidden, inner, tokens, bits)),
        add_norm,
    ]
    rest = [
        ("embed", Cost(tokens * model.hidden * (BF16 + FP32))),
        ("linear head", linear(vocabulary, model.hidden, tokens, 16)),
        ("tops_of_rows", Cost(tokens * vocabulary * FP32, 3 * tokens * vocabulary)),
    ]
    merged = {}
    for name, cost in layer:
        merged[name] = (merged.get(name, (0, cost))[0] + model.layers, cost)
    return [(name, runs, cost) for name, (runs, cost) in merged.items()] + [(name, 1, cost) for name, cost in rest]


def time_of(cost, gpu):
    """Seconds, and what bounds it."""
    times = {"memory": cost.bytes / gpu.bandwidth, "tensor cores": cost.flops / gpu.flops, "NVLink": cost.linked / gpu.nvlink}
    bound = max(times, key=times.get)
    return times[bound], bound


def print_table(model, tokens, weights):
    print(f"\n### {model.name}, {model.ranks} GPU{'s' if model.ranks > 1 else ''}, {weights}, {tokens} sequence{'s' if tokens > 1 else ''}\n")
    print("| kernel | runs | MB of one | GFLOP of one | " + " | ".join(f"µs of one, {gpu.name}" for gpu in GPUS) + " | bound |")
    print("| --- | ---: | ---: | ---: | " + "---: | " * len(GPUS) + "--- |")
    totals = [0.0] * len(GPUS)
    for name, runs, cost in step(model, tokens, WEIGHT_BITS[weights]):
        times = [time_of(cost, gpu) for gpu in GPUS]
        totals = [total + runs * seconds for total, (seconds, _) in zip(totals, times)]
        columns = " | ".join(f"{seconds * 1e6:.2f}" for seconds, _ in times)
        print(f"| {name} | {runs} | {cost.bytes / 1e6:.2f} | {cost.flops / 1e9:.2f} | {columns} | {times[0][1]} |")
    for gpu, total in zip(GPUS, totals):
        print(f"\n{gpu.name}: a step takes {total * 1e3:.2f} ms at least: {tokens / total:,.0f} tokens/s at most.")


def main():
    print("# The roofline of a decode step on GPUs\n")
    print("Printed by `scripts/roofline.py` from the bytes and flops that the kernels state; not a measurement. What a kernel takes at least is the largest of")
    print("bytes / bandwidth, flops / peak and bytes over NVLink / its bandwidth; launches (one graph a step) and the gaps between kernels come on top.")
    print(f"Each sequence has {CONTEXT} tokens in a bf16 cache. The head is bf16 throughout.\n")
    print("| GPU | memory | bf16, dense | NVLink, one way |\n| --- | ---: | ---: | ---: |")
    for gpu in GPUS:
        print(f"| {gpu.name} | {gpu.bandwidth / 1e12:.2f} TB/s | {gpu.flops / 1e12:.0f} TFLOP/s | {gpu.nvlink / 1e9:.0f} GB/s |")
    for model in MODELS:
        for weights in ("BF16", "Q4_1"):
            for tokens in TOKENS:
                print_table(model, tokens, weights)


if __name__ == "__main__":
    main()
