#!/usr/bin/env python3
"""Writes GGUF files to measure with.

  make-model.py convert MODEL.gguf TYPE OUT.gguf    the matrices of a model, quantised anew (its norms and everything else stay)
  make-model.py random TYPE OUT.gguf [--layers 16 --hidden 2048 --heads 32 --kv-heads 8 --inner 8192 --vocabulary 32000]
                                                    random weights in the shape of a 1B model, without a tokenizer
TYPE: F32, F16, BF16, Q8_0, Q4_0, Q4_1; random also Q4_K, Q6_K. Needs numpy.
"""
import argparse
import struct

import numpy as np

CONVERTIBLE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210),
         "BF16": (30, 1, 2)}  # id, block, bytes
BY_ID = {number: name for name, (number, _, _) in TYPES.items()}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
ALIGNMENT = 32


class Reader:
    def __init__(self, path):
        self.bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.bytes, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return bytes(self.bytes[self.at - size:self.at])

    def skip_value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.at += struct.calcsize("<" + SCALARS[kind])


def read(path):
    """The metadata as raw bytes with their number, and the tensors: name, shape (rows last), type, bytes."""
    reader = Reader(path)
    if reader.take("I") != 0x46554747:
        raise SystemExit(f"{path} is no GGUF file")
    reader.take("I")
    num_tensors, num_values = reader.take("Q"), reader.take("Q")
    begin = reader.at
    for _ in range(num_values):
        reader.text()
        reader.skip_value(reader.take("I"))
    metadata = bytes(reader.bytes[begin:reader.at])
    infos = []
    for _ in range(num_tensors):
        name = reader.text()
        shape = [reader.take("Q") for _ in range(reader.take("I"))]
        infos.append((name, shape, BY_ID[reader.take("I")], reader.take("Q")))
    data = (reader.at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    tensors = []
    for name, shape, kind, offset in infos:
        _, block, size = TYPES[kind]
        count = int(np.prod(shape)) // block * size
        tensors.append((name, shape, kind, reader.bytes[data + offset:data + offset + count]))
    return metadata, num_values, tensors


def write(path, metadata, num_values, tensors):
    """`tensors`: name, shape, type, function that gives the bytes."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IIQQ", 0x46554747, 3, len(tensors), num_values) + metadata)
        offset = 0
        for name, shape, kind, _ in tensors:
            number, block, size = TYPES[kind]
            file.write(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset))
            offset += (int(np.prod(shape)) // block * size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        for _, _, _, contents in tensors:
            data = np.ascontiguousarray(contents()).view(np.uint8).tobytes()
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))


def expand(kind, data):
    if kind == "F32":
        return data.view(np.float32)
    if kind == "F16":
        return data.view(np.float16).astype(np.float32)
    if kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = data.reshape(-1, TYPES[kind][2])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return (scale * blocks[:, 2:].view(np.int8)).ravel()
    header = 4 if kind == "Q4_1" else 2
    nibbles = np.concatenate([blocks[:, header:] & 15, blocks[:, header:] >> 4], axis=1).astype(np.float32)
    if kind == "Q4_0":
        return (scale * (nibbles - 8)).ravel()
    return (scale * nibbles + blocks[:, 2:4].copy().view(np.float16).astype(np.float32)).ravel()


def pack_nibbles(header, nibbles):
    nibbles = np.clip(nibbles, 0, 15).astype(np.uint8)
    return np.concatenate([header, nibbles[:, :16] | (nibbles[:, 16:] << 4)], axis=1)


def inverse(scale):
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)


def quantise(kind, values):
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16)
    if kind == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    blocks = values.reshape(-1, 32)
    if kind == "Q8_0":
        scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
        quants = np.rint(blocks * inverse(scale)).astype(np.int8)
        return np.concatenate([scale.astype(np.float16).view(np.uint8), quants.view(np.uint8)], axis=1)
    if kind == "Q4_0":
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
        scale = largest / -8
        return pack_nibbles(scale.astype(np.float16).view(np.uint8), np.floor(blocks * inverse(scale) + 8.5))
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / 15
    header = np.concatenate([scale.astype(np.float16).view(np.uint8), low.astype(np.float16).view(np.uint8)], axis=1)
    return pack_nibbles(header, np.floor((blocks - low) * inverse(scale) + 0.5))


def random_bytes(kind, count, generator):
    """Weights of a size that keeps the activations small, made as they are stored."""
    if kind in ("F32", "F16", "BF16"):
        return quantise(kind, (generator.standard_normal(count, dtype=np.float32) * np.float32(0.02)))
    if kind in ("Q4_K", "Q6_K"):  # of eight and sixteen blocks of 32 and 16, with scales of their own
        blocks = generator.integers(0, 256, (count // 256, TYPES[kind][2]), dtype=np.uint8)
        scale = np.float16(0.06 / 8 / 32).tobytes() if kind == "Q4_K" else np.float16(0.06 / 32 / 64).tobytes()
        if kind == "Q4_K":  # in front: of the quants and of the minima
            blocks[:, :4] = np.frombuffer(scale + np.float16(0.06 / 8 / 32 * 7.5).tobytes(), np.uint8)
        else:
            blocks[:, -2:] = np.frombuffer(scale, np.uint8)
        return blocks
    number = count // 32
    scale = np.full((number, 1), 0.06 / (127 if kind == "Q8_0" else 8), np.float16).view(np.uint8)
    quants = generator.integers(0, 256, (number, 32 if kind == "Q8_0" else 16), dtype=np.uint8)
    if kind == "Q4_0":  # 0 in place of -8: the mean of a model's weights is 0; with another one scores are so large that attention computes with subnormals
        quants = np.where(quants & 15 == 0, quants | 8, quants)
        quants = np.where(quants >> 4 == 0, quants | 128, quants).astype(np.uint8)
    if kind == "Q4_1":
        scale = np.concatenate([scale, np.full((number, 1), -0.06 / 8 * 7.5, np.float16).view(np.uint8)], axis=1)
    return np.concatenate([scale, quants], axis=1)


def value(name, kind, contents):
    key = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)
    if kind == 8:
        return key + struct.pack("<Q", len(contents)) + contents.encode()
    return key + struct.pack("<" + SCALARS[kind], contents)


def convert(arguments):
    metadata, num_values, tensors = read(arguments.model)

    def made(name, shape, kind, data):
        if len(shape) < 2 or kind == arguments.type:
            return name, shape, kind, lambda: data
        return name, shape, arguments.type, lambda: quantise(arguments.type, np.ascontiguousarray(expand(kind, np.ascontiguousarray(data)), np.float32))

    write(arguments.out, metadata, num_values, [made(*tensor) for tensor in tensors])


def random(arguments):
    hidden, inner, head = arguments.hidden, arguments.inner, arguments.hidden // arguments.heads
    values = [value("general.architecture", 8, "llama"), value("general.name", 8, "random"), value("llama.context_length", 4, 4096),
              value("llama.embedding_length", 4, hidden), value("llama.block_count", 4, arguments.layers), value("llama.feed_forward_length", 4, inner),
              value("llama.attention.head_count", 4, arguments.heads), value("llama.attention.head_count_kv", 4, arguments.kv_heads),
              value("llama.rope.dimension_count", 4, head), value("llama.rope.freq_base", 6, 10000.0),
              value("llama.attention.layer_norm_rms_epsilon", 6, 1e-5), value("llama.vocab_size", 4, arguments.vocabulary),
              value("tokenizer.ggml.model", 8, "no_vocab")]
    shapes = [("token_embd.weight", [hidden, arguments.vocabulary]), ("output_norm.weight", [hidden])]
    for layer in range(arguments.layers):
        for name, shape in (("attn_norm", [hidden]), ("attn_q", [hidden, hidden]), ("attn_k", [hidden, arguments.kv_heads * head]),
                            ("attn_v", [hidden, arguments.kv_heads * head]), ("attn_output", [hidden, hidden]), ("ffn_norm", [hidden]),
                            ("ffn_gate", [hidden, inner]), ("ffn_up", [hidden, inner]), ("ffn_down", [inner, hidden])):
            shapes.append((f"blk.{layer}.{name}.weight", shape))
    generator = np.random.default_rng(1)

    def made(name, shape):
        if len(shape) == 1:
            return name.encode(), shape, "F32", lambda: np.ones(shape, np.float32)
        return name.encode(), shape, arguments.type, lambda: random_bytes(arguments.type, int(np.prod(shape)), generator)

    write(arguments.out, b"".join(values), len(values), [made(*each) for each in shapes])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("convert")
    one.add_argument("model")
    one.add_argument("type", choices=CONVERTIBLE)
    one.add_argument("out")
    one.set_defaults(run=convert)
    two = commands.add_parser("random")
    two.add_argument("type", choices=TYPES)
    two.add_argument("out")
    for name, default in (("layers", 16), ("hidden", 2048), ("heads", 32), ("kv-heads", 8), ("inner", 8192), ("vocabulary", 32000)):
        two.add_argument("--" + name, type=int, default=default)
    two.set_defaults(run=random)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
