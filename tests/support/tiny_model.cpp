#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

using device::DType;

/// Numbers in (-1, 1), the same on every machine (std::uniform_real_distribution is not).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  float next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  std::uint64_t state_;
};

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

void put_string(std::string& out, const std::string& text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

/// One block of 32 in a plain rule: the reader defines what the bytes mean, how they were chosen does not matter.
void put_block(std::string& out, DType dtype, std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float largest = std::max(std::fabs(*low), std::fabs(*high));
  const float minimum = dtype == DType::kQ4_1 ? *low : 0.0f;
  const float scale = dtype == DType::kQ8_0 ? largest / 127.0f : dtype == DType::kQ4_0 ? largest / 7.0f : (*high - *low) / 15.0f;
  put(out, device::float_to_half(scale));
  if (dtype == DType::kQ4_1) put(out, device::float_to_half(minimum));
  const auto quantum = [&](float value) { return static_cast<int>(std::lround((value - minimum) / scale)); };
  if (dtype == DType::kQ8_0) {
    for (const float value : values) put(out, static_cast<std::int8_t>(quantum(value)));
    return;
  }
  const int offset = dtype == DType::kQ4_0 ? 8 : 0;
  const auto nibble = [&](float value) { return std::clamp(quantum(value) + offset, 0, 15); };
  for (std::size_t i = 0; i < 16; ++i) put(out, static_cast<std::uint8_t>(nibble(values[i]) | (nibble(values[i + 16]) << 4)));
}

/// A super-block of Q4_K, Q5_K or Q6_K of random bits, whose scale makes its numbers about as large as `values`.
void put_super_block(std::string& out, DType dtype, std::span<const float> values) {
  const bool has_minimum = dtype != DType::kQ6_K;
  const std::size_t begin = out.size();
  for (std::size_t i = 0; i < device::info(dtype).block_bytes; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    put(out, static_cast<std::uint8_t>(bits >> 7));
  }
  const float largest = std::fabs(*std::max_element(values.begin(), values.end()));
  const float scale = largest / (has_minimum ? 63.0f * (dtype == DType::kQ5_K ? 31.0f : 15.0f) : 128.0f * 32.0f);
  const std::uint16_t halves[2] = {device::float_to_half(scale), device::float_to_half(scale * (dtype == DType::kQ5_K ? 15.5f : 7.5f))};
  std::memcpy(&out[begin + (has_minimum ? 0 : 208)], halves, has_minimum ? 4 : 2);
}

void put_values(std::string& out, DType dtype, std::span<const float> values) {
  const std::size_t size = device::info(dtype).block_size;
  for (std::size_t i = 0; size > 1 && i < values.size(); i += size) {
    if (size == 32) put_block(out, dtype, values.subspan(i, size));
    if (size == 256) put_super_block(out, dtype, values.subspan(i, size));
  }
  if (size > 1) return;
  for (const float value : values) {
    if (dtype == DType::kF32) put(out, value);
    if (dtype == DType::kF16) put(out, device::float_to_half(value));
    if (dtype == DType::kBF16) put(out, device::float_to_bfloat16(value));
  }
}

std::uint32_t gguf_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0;
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ8_0: return 8;
    case DType::kBF16: return 30;
    case DType::kQ4_K: return 12;
    case DType::kQ5_K: return 13;
    case DType::kQ6_K: return 14;
    default: break;
  }
  throw std::invalid_argument("no GGUF type");
}

/// The printable symbol that byte-level vocabularies write for a byte (GPT-2's table).
std::string byte_symbol(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int other = 0; other < byte; ++other) code += printable(other) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

class GgufWriter {
 public:
  void number(const std::string& key, std::uint32_t value) { put(begin(key, 4), value); }
  void real(const std::string& key, float value) { put(begin(key, 6), value); }
  void truth(const std::string& key, bool value) { put<std::uint8_t>(begin(key, 7), value ? 1 : 0); }
  void text(const std::string& key, const std::string& value) { put_string(begin(key, 8), value); }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    std::string& out = begin(key, 9);
    put<std::uint32_t>(out, 8);
    put<std::uint64_t>(out, values.size());
    for (const std::string& value : values) put_string(out, value);
  }
  void numbers(const std::string& key, const std::vector<std::int32_t>& values) {
    std::string& out = begin(key, 9);
    put<std::uint32_t>(out, 5);
    put<std::uint64_t>(out, values.size());
    for (const std::int32_t value : values) put(out, value);
  }
  void tensor(const std::string& name, DType dtype, const std::vector<std::size_t>& shape, std::span<const float> values) {
    put_string(tensors_, name);
    put<std::uint32_t>(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) put<std::uint64_t>(tensors_, *size);  // fastest axis first
    put(tensors_, gguf_type(dtype));
    put<std::uint64_t>(tensors_, data_.size());
    put_values(data_, dtype, values);
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
  }
  void write(const std::filesystem::path& path) const {
    std::string header = "GGUF";
    put<std::uint32_t>(header, 3);
    put<std::uint64_t>(header, num_tensors_);
    put<std::uint64_t>(header, num_values_);
    header += metadata_ + tensors_;
    header.resize((header.size() + 31) / 32 * 32);
    std::ofstream file(path, std::ios::binary);
    file << header << data_;
    file.close();
    if (!file) throw std::runtime_error("can not write " + path.string());
  }

 private:
  std::string& begin(const std::string& key, std::uint32_t kind) {
    put_string(metadata_, key);
    put(metadata_, kind);
    ++num_values_;
    return metadata_;
  }
  std::string metadata_;
  std::string tensors_;
  std::string data_;
  std::uint64_t num_values_ = 0;
  std::uint64_t num_tensors_ = 0;
};

void add_metadata(GgufWriter& writer, const TinyModel& model) {
  const auto u32 = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
  writer.text("general.architecture", "llama");
  writer.text("general.name", "tiny");
  writer.number("llama.block_count", u32(model.num_layers));
  writer.number("llama.context_length", u32(model.context));
  writer.number("llama.embedding_length", u32(model.hidden));
  writer.number("llama.feed_forward_length", u32(model.feed_forward));
  writer.number("llama.attention.head_count", u32(model.num_heads));
  writer.number("llama.attention.head_count_kv", u32(model.num_kv_heads));
  writer.number("llama.rope.dimension_count", u32(model.hidden / model.num_heads));
  writer.real("llama.rope.freq_base", 10000.0f);
  writer.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  if (!model.has_tokenizer) {
    writer.number("llama.vocab_size", u32(model.vocabulary));
    writer.text("tokenizer.ggml.model", "no_vocab");
    return;
  }
  std::vector<std::string> tokens{"<pad>", "<s>", "</s>"};
  std::vector<std::int32_t> types{3, 3, 3};
  for (int byte = 0; tokens.size() < model.vocabulary; ++byte) {
    tokens.push_back(byte_symbol(byte));
    types.push_back(1);
  }
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", "gpt-2");
  writer.texts("tokenizer.ggml.tokens", tokens);
  writer.numbers("tokenizer.ggml.token_type", types);
  writer.texts("tokenizer.ggml.merges", {});
  writer.number("tokenizer.ggml.bos_token_id", 1);
  writer.number("tokenizer.ggml.eos_token_id", 2);
  writer.number("tokenizer.ggml.padding_token_id", 0);
  writer.truth("tokenizer.ggml.add_bos_token", true);
  writer.text("tokenizer.chat_template",
              "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
}

}  // namespace

void write_tiny_gguf(const std::filesystem::path& path, DType dtype, const TinyModel& model) {
  GgufWriter writer;
  add_metadata(writer, model);
  Random random(model.seed);
  const auto matrix = [&](const std::string& name, std::size_t rows, std::size_t columns) {
    std::vector<float> values(rows * columns);
    const float scale = 2.0f / std::sqrt(static_cast<float>(columns));
    for (float& value : values) value = scale * random.next();
    if (model.head_of_one_sign && name == "output") {
      for (std::size_t i = columns; i < values.size(); ++i)
        values[i] = values[i % columns] * (1.0f + 0.01f * static_cast<float>((i / columns * 7) % rows));
    }
    if (model.nan_token >= 0 && name == "token_embd") {
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(model.nan_token) * static_cast<std::ptrdiff_t>(columns), columns,
                  std::nanf(""));
    }
    writer.tensor(name + ".weight", dtype, {rows, columns}, values);
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values(model.hidden);
    for (float& value : values) value = 1.0f + 0.3f * random.next();
    writer.tensor(name + ".weight", DType::kF32, {model.hidden}, values);
  };
  const std::size_t kv_rows = model.hidden / model.num_heads * model.num_kv_heads;
  matrix("token_embd", model.vocabulary, model.hidden);
  for (std::size_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    norm(block + "attn_norm");
    matrix(block + "attn_q", model.hidden, model.hidden);
    matrix(block + "attn_k", kv_rows, model.hidden);
    matrix(block + "attn_v", kv_rows, model.hidden);
    matrix(block + "attn_output", model.hidden, model.hidden);
    norm(block + "ffn_norm");
    matrix(block + "ffn_gate", model.feed_forward, model.hidden);
    matrix(block + "ffn_up", model.feed_forward, model.hidden);
    matrix(block + "ffn_down", model.hidden, model.feed_forward);
  }
  norm("output_norm");
  matrix("output", model.vocabulary, model.hidden);
  writer.write(path);
}

}  // namespace lockstep::test
