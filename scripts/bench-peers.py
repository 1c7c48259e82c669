#!/usr/bin/env python3
"""The measurements of bench-peers.sh: every program in turn, round after round; ratios with medians and spread. Needs numpy, llama-cpp-python, ctranslate2.

Each measurement is a process of its own that loads the model, warms up once and prints one JSON object: decode and prefill in tokens a second, and total tokens
over wall time of an offline batch.
"""
import argparse
import json
import os
import pathlib
import runpy
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
DECODE_PROMPT, DECODE, PREFILL = 16, 128, 512
SLOTS = 32


def requests(count, mixed):
    """Prompt and answer lengths: 128 + 128 each, or evenly within 12 to 243, the same in every run (`lockstep bench throughput --range-ratio 0.9`)."""
    if not mixed:
        return [(128, 128)] * count
    state, lengths = 0, []

    def draw():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        value = ((z ^ (z >> 31)) >> 11) * 2.0**-53
        return max(1, int(0.1 * 128 + 2 * 0.9 * 128 * value + 0.5))

    for _ in range(count):
        prompt = draw()
        lengths.append((prompt, draw()))
    return lengths


def prompt_of(number, length, vocabulary):
    return [(i * 7919 + number * 104729) % vocabulary for i in range(length)]


def offline(job):
    return {"batch32": requests(32, False), "mixed256": requests(256, True)}[job]


# --- llama.cpp -----------------------------------------------------------------------------------------------------------------------------------------------


class Llama:
    def __init__(self, path, threads):
        import llama_cpp

        self.api = api = llama_cpp
        api.llama_backend_init()
        self.quiet = api.llama_log_callback(lambda level, text, data: None)  # kept: the library calls it to its end
        api.llama_log_set(self.quiet, None)
        model = api.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(str(path).encode(), model)
        context = api.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max = SLOTS * 512, 2048, 512, SLOTS
        context.n_threads = context.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit("llama.cpp can not open the model")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.sampler = api.llama_sampler_init_greedy()
        self.batch = api.llama_batch_init(2048, 0, 1)

    def forget(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def step(self, entries):
        """`entries`: slot, first position, tokens. Returns the next token of each."""
        batch, at, rows = self.batch, 0, []
        for slot, first, tokens in entries:
            for i, token in enumerate(tokens):
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, first + i, 1, i + 1 == len(tokens)
                batch.seq_id[at][0] = slot
                at += 1
            rows.append(at - 1)
        batch.n_tokens = at
        if self.api.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp: decode failed")
        return [self.api.llama_sampler_sample(self.sampler, self.context, row) for row in rows]

    def decode(self):
        self.forget()
        token, position = self.step([(0, 0, prompt_of(1, DECODE_PROMPT, self.vocabulary))])[0], DECODE_PROMPT
        start = time.perf_counter()
        for _ in range(DECODE):
            token = self.step([(0, position, [token])])[0]
            position += 1
        return DECODE / (time.perf_counter() - start)

    def prefill(self):
        self.forget()
        start = time.perf_counter()
        self.step([(0, 0, prompt_of(2, PREFILL, self.vocabulary))])
        return PREFILL / (time.perf_counter() - start)

    def offline(self, lengths):
        """Continuous batching over SLOTS sequences."""
        self.forget()
        waiting, running, free, number = list(lengths), {}, list(range(SLOTS)), 0
        start = time.perf_counter()
        while waiting or running:
            entries = [(slot, state[0], [state[2]]) for slot, state in running.items()]
            room = 2048 - len(entries)
            while waiting and free and waiting[0][0] <= room:
                prompt, answer = waiting.pop(0)
                number += 1
                slot = free.pop()
                running[slot] = [0, answer, None]
                entries.append((slot, 0, prompt_of(number, prompt, self.vocabulary)))
                room -= prompt
            for (slot, first, tokens), token in zip(entries, self.step(entries)):
                state = running[slot]
                state[0], state[1], state[2] = first + len(tokens), state[1] - 1, token
                if state[1] == 0:
                    self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), slot, -1, -1)
                    del running[slot]
                    free.append(slot)
        return sum(map(sum, lengths)) / (time.perf_counter() - start)


# --- CTranslate2 ---------------------------------------------------------------------------------------------------------------------------------------------


def ctranslate2_folder(path, folder):
    """The same weights as an int8 model of CTranslate2's."""
    import ctranslate2
    import numpy as np

    out = folder / (path.stem + ".ct2")
    if out.exists():
        return out
    maker = runpy.run_path(str(HERE / "make-model.py"))
    _, _, tensors = maker["read"](str(path))
    values = {name.decode(): maker["expand"](kind, np.ascontiguousarray(data)).astype(np.float32).reshape(shape[::-1]) for name, shape, kind, data in tensors}
    layers = 1 + max(int(name.split(".")[1]) for name in values if name.startswith("blk."))
    hidden = values["output_norm.weight"].size
    kv = values["blk.0.attn_k.weight"].shape[0]
    heads = 9 if hidden == 576 else hidden // 64
    head = hidden // heads
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(
        layers, heads, activation=ctranslate2.specs.Activation.SWISH, pre_norm=True, ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=True,
        rotary_base=10000, num_heads_kv=kv // head)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = values["token_embd.weight"]
    decoder.projection.weight = values.get("output.weight", values["token_embd.weight"])
    decoder.layer_norm.gamma = values["output_norm.weight"]
    for index, layer in enumerate(decoder.layer):
        of = lambda name: values[f"blk.{index}.{name}.weight"]
        layer.self_attention.layer_norm.gamma, layer.ffn.layer_norm.gamma = of("attn_norm"), of("ffn_norm")
        layer.self_attention.linear[0].weight = np.concatenate([of("attn_q"), of("attn_k"), of("attn_v")])
        layer.self_attention.linear[1].weight = of("attn_output")
        layer.ffn.linear_0.weight, layer.ffn.linear_0_noact.weight, layer.ffn.linear_1.weight = of("ffn_gate"), of("ffn_up"), of("ffn_down")
    spec.register_vocabulary([f"t{i}" for i in range(decoder.embeddings.weight.shape[0])])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "t0"
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize(quantization="int8")
    out.mkdir()
    spec.save(str(out))
    return out


class CTranslate2:
    def __init__(self, path, threads):
        import ctranslate2

        self.generator = ctranslate2.Generator(str(path), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads)
        self.vocabulary = 30000

    def generate(self, prompts, answer):
        self.generator.generate_batch(prompts, max_length=answer, min_length=answer, include_prompt_in_result=False, sampling_topk=1, end_token=[],
                                      max_batch_size=SLOTS)

    def prompts(self, lengths):
        return [[f"t{token}" for token in prompt_of(i + 1, length, self.vocabulary)] for i, length in enumerate(lengths)]

    def timed(self, prompts, answer):
        start = time.perf_counter()
        self.generate(prompts, answer)
        return time.perf_counter() - start

    def decode(self):
        prompts = self.prompts([DECODE_PROMPT])
        return DECODE / (self.timed(prompts, DECODE + 1) - self.timed(prompts, 1))

    def prefill(self):
        return PREFILL / self.timed(self.prompts([PREFILL]), 1)

    def offline(self, lengths):
        """Mixed lengths: batches of like answers, cut to the longest of each batch."""
        start = time.perf_counter()
        for first in range(0, len(lengths), SLOTS):
            part = sorted(lengths, key=lambda each: each[1])[first:first + SLOTS]
            self.generate(self.prompts([prompt for prompt, _ in part]), max(answer for _, answer in part))
        return sum(map(sum, lengths)) / (time.perf_counter() - start)


def measure_peer(program, path, threads, job):
    peer = {"llama.cpp": Llama, "ctranslate2": CTranslate2}[program](path, threads)
    if job == "single":
        peer.prefill()
        return {"decode": peer.decode(), "prefill": max(peer.prefill() for _ in range(2))}
    peer.prefill()
    return {job: peer.offline(offline(job))}


# --- Lockstep ------------------------------------------------------------------------------------------------------------------------------------------------


def measure_lockstep(lockstep, path, threads, job, extra):
    def run(*arguments):
        return json.loads(subprocess.run([lockstep, "bench", *arguments, "-m", str(path), "--json", *extra], check=True, capture_output=True, text=True).stdout)

    threads = ["--threads", str(threads)]
    if job == "single":
        result = run("--input-len", str(PREFILL), "--output-len", str(DECODE), "--num-prompts", "1", "--warmup", "1", "--iterations", "1", *threads)
        return {"decode": result["decode_tok_s"], "prefill": result["prefill_tok_s"], "roofline": result["share_of_roofline"]}
    lengths = ["--num-prompts", "32"] if job == "batch32" else ["--num-prompts", "256", "--range-ratio", "0.9"]
    result = run("throughput", "--input-len", "128", "--output-len", "128", "--warmup", "0", "--iterations", "1", *lengths, *threads)
    return {job: result["total_tok_s"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--lockstep")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape-1b", action="store_true", help="also random weights in the shape of a 1B model")
    parser.add_argument("--quick", action="store_true", help="decode and prefill only")
    parser.add_argument("--types", default="Q4_1,Q4_0,Q8_0,F16")
    parser.add_argument("--with", dest="prefix", default="", help="a command to run each measurement with")
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)  # in a process of its own: program, job
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(measure_peer(arguments.peer[0], arguments.model, arguments.threads, arguments.peer[1])))
        return

    maker, models = [sys.executable, str(HERE / "make-model.py")], {}
    for kind in arguments.types.split(","):
        models["example " + kind] = made = arguments.folder / f"example.{kind}.gguf"
        if not made.exists():
            subprocess.run([*maker, "convert", str(arguments.model), kind, str(made)], check=True)
        if arguments.shape_1b:
            models["1B " + kind] = made = arguments.folder / f"1b.{kind}.gguf"
            if not made.exists():
                subprocess.run([*maker, "random", kind, str(made)], check=True)

    results = {}  # (model, measure, program) -> values

    def peer(program, path, job):
        command = [*arguments.prefix.split(), sys.executable, __file__, "--model", str(path), "--threads", str(arguments.threads), "--peer", program, job]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{program}, {path.name}, {job}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return {}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def note(model, program, values):
        for measure, number in values.items():
            results.setdefault((model, measure, program), []).append(number)

    jobs = ["single"] if arguments.quick else ["single", "batch32", "mixed256"]
    for round_number in range(arguments.rounds):
        for model, path in models.items():
            for job in jobs:
                lockstep = [arguments.lockstep] if not arguments.prefix else None
                program = arguments.lockstep if lockstep else str(arguments.folder / "lockstep-with")
                if not lockstep:
                    pathlib.Path(program).write_text(f'#!/bin/sh\nexec {arguments.prefix} {os.path.abspath(arguments.lockstep)} "$@"\n')
                    os.chmod(program, 0o755)
                note(model, "lockstep", measure_lockstep(program, path, arguments.threads, job, []))
                note(model, "llama.cpp", peer("llama.cpp", path, job))
        for model in [name for name in models if name.endswith(arguments.types.split(",")[0])]:
            for job in jobs:
                note(model, "ctranslate2", peer("ctranslate2", ctranslate2_folder(models[model], arguments.folder), job))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)

    print(f"{'':<16}{'':<10}{'program':<13}{'median':>9}{'least':>9}{'most':>9}{'lockstep is':>13}")
    for (model, measure, program), values in sorted(results.items()):
        ours = results.get((model, measure, "lockstep"), [])
        middle = statistics.median(values)
        ratio = f"{statistics.median(a / b for a, b in zip(ours, values)):>12.2f}x" if program != "lockstep" else ""
        digits = 3 if measure == "roofline" else 1
        print(f"{model:<16}{measure:<10}{program:<13}{middle:>9.{digits}f}{min(values):>9.{digits}f}{max(values):>9.{digits}f}{ratio}")


if __name__ == "__main__":
    main()
