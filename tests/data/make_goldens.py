#!/usr/bin/env python3
"""Makes a folder of tests/data/models whose model is not in the reference set: a small model with random weights, and what transformers gives for it.

  tests/data/make_goldens.py NAME        # one of MODELS, written to tests/data/models/NAME

needs torch 2.11, transformers 4.57 and safetensors. fp32 on one thread; greedy tokens, beams and their gaps are checked in float64. The file
config.v5.json is that of the folder `like`, with the same changes.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

MODELS = {
    # The one size of OPT with norms behind the branches: embeddings of another size than the hidden states, no norm before the head.
    "opt-post-norm": {"like": "opt", "changes": {"do_layer_norm_before": False, "word_embed_proj_dim": 24}},
    "phi-head-norms": {"like": "phi", "changes": {"qk_layernorm": True}},
}
HERE = pathlib.Path(__file__).resolve().parent / "models"
PROMPTS = {"p1": 1, "p7": 7, "p33": 33, "p80": 80}
STEPS = 48


def with_random_weights(config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name
            if parameter.dim() == 1:
                parameter.normal_(1.0 if is_norm and name.endswith("weight") else 0.0, 0.2)
            elif "embed" in name or "lm_head" in name:
                parameter.normal_(0.0, 0.4)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
    return model


def logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy(model, tokens, steps, end=None):
    made, least = [], float("inf")
    for _ in range(steps):
        last = logits(model, tokens + made)[-1]
        top = last.topk(2).values
        least = min(least, (top[0] - top[1]).item())
        made.append(int(last.argmax()))
        if made[-1] == end:
            break
    return made, least


def beams(model, tokens, end, penalty, early):
    found = model.generate(torch.tensor([tokens]), num_beams=4, num_return_sequences=4, max_new_tokens=16, do_sample=False, eos_token_id=end,
                           pad_token_id=0, length_penalty=penalty, early_stopping=early, return_dict_in_generate=True, output_scores=True)
    results = []
    for sequence, score in zip(found.sequences, found.sequences_scores):
        made = sequence[len(tokens):].tolist()
        results.append({"tokens": made[:made.index(end) + 1] if end in made else made, "score": score.item()})
    return results


def hidden_states(model, tokens):
    """What comes out of the modules: layer.i.attn_out and .mlp_out before the residual, layer.i.out, final_norm."""
    layers = next(module for name, module in model.named_modules() if name.endswith("layers"))
    taken, handles = {}, []

    def take(name, module, is_input=False):
        def hook(_, inputs, output):
            value = inputs[0] if is_input else output[0] if isinstance(output, tuple) else output
            taken[name] = value.detach().reshape(len(tokens), -1).clone()
        handles.append(module.register_forward_hook(hook))

    take("layer.0.in", layers[0], True)
    for i, layer in enumerate(layers):
        take(f"layer.{i}.out", layer)
        take(f"layer.{i}.attn_out", getattr(layer.self_attn, "out_proj", None) or layer.self_attn.dense)
        take(f"layer.{i}.mlp_out", getattr(layer, "fc2", None) or layer.mlp.fc2)
    for name, module in model.named_modules():
        if name in ("model.decoder.final_layer_norm", "model.final_layernorm") and module is not None:
            take("final_norm", module)
    taken["logits"] = logits(model, tokens)
    for handle in handles:
        handle.remove()
    return taken


def answers(name, model, double):
    rng = torch.Generator().manual_seed(11)
    random = lambda count: torch.randint(3, model.config.vocab_size, (count,), generator=rng).tolist()
    golden = {"model": name, "dtype": "float32", "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
              "prompts": {}, "greedy_steps": STEPS, "hidden_prompt": "p33"}
    tensors = {}
    for prompt, count in PROMPTS.items():
        tokens = random(count)
        made, least = greedy(model, tokens, STEPS)
        if least < 1e-3 or len(set(made)) < 6 or greedy(double, tokens, STEPS)[0] != made:
            return None
        golden["prompts"][prompt] = {"tokens": tokens, "greedy": made, "greedy_min_margin": least}
        tensors[f"logits.{prompt}"] = logits(model, tokens).contiguous()
    first = golden["prompts"]["p7"]
    end = first["greedy"][5]
    golden["greedy_eos"] = {"prompt": "p7", "eos_token_id": end, "tokens": greedy(model, first["tokens"], STEPS, end)[0]}
    cases = []
    for stop, penalty, early in [(None, 1.0, False), (end, 1.0, False), (end, 0.0, "never"), (end, 2.0, True)]:
        found = beams(model, first["tokens"], stop, penalty, early)
        if [each["tokens"] for each in beams(double, first["tokens"], stop, penalty, early)] != [each["tokens"] for each in found]:
            return None
        cases.append({"num_beams": 4, "max_new_tokens": 16, "eos_token_id": stop, "length_penalty": penalty, "early_stopping": early,
                      "beams": found})
    golden["beam"] = {"prompt": "p7", "cases": cases}
    tokens = random(64)
    row = logits(model, tokens).double().log_softmax(-1)
    each = [row[i, tokens[i + 1]].item() for i in range(len(tokens) - 1)]
    mean = -sum(each) / len(each)
    golden["score"] = {"tokens": tokens, "token_logprobs": each, "sum_logprob": sum(each), "mean_nll": mean,
                       "perplexity": float(torch.tensor(mean, dtype=torch.float64).exp())}
    golden["logit_std"] = tensors["logits.p80"].std().item()
    golden["max_abs_diff_to_float64"] = (logits(double, golden["prompts"]["p80"]["tokens"]) - tensors["logits.p80"]).abs().max().item()
    return golden, tensors


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


@torch.no_grad()
def main():
    if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
        sys.exit(__doc__ + "\nMODELS: " + ", ".join(MODELS))
    torch.set_num_threads(1)
    name, made_of = sys.argv[1], MODELS[sys.argv[1]]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for file in ("config.json", "config.v5.json"):
        write_json(folder / file, json.loads((HERE / made_of["like"] / file).read_text()) | made_of["changes"])
    config = transformers.AutoConfig.from_pretrained(folder)
    for seed in range(300):
        model = with_random_weights(config, seed)
        double = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        double.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
        found = answers(name, model, double)
        if found:
            break
    golden, tensors = found
    print(f"{name}: seed {seed}, logits {golden['logit_std']:.2f}, float64 {golden['max_abs_diff_to_float64']:.2g} off, "
          f"{len(set(golden['prompts']['p80']['greedy']))} tokens")
    state = {key: value.contiguous() for key, value in model.state_dict().items()
             if not (config.tie_word_embeddings and key == "lm_head.weight")}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "golden_logits.safetensors")
    save_file({key: value.contiguous() for key, value in hidden_states(model, golden["prompts"]["p33"]["tokens"]).items()},
              folder / "golden_hidden.safetensors")
    write_json(folder / "golden.json", golden)


main()
