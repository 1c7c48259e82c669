// GPT-2 as a GGUF file: the reference model of the tree under the names, and with the matrices as [out, in], that the converter of such
// files gives them. It is written on the spot; the logits are those of the reference.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/safetensors.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = fs::path(LOCKSTEP_TEST_DATA) / "models" / "gpt2";

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

void put_text(std::string& out, const std::string& text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

std::vector<float> values_of(const engine::WeightSource& source, const engine::StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes / sizeof(float));
  source.read(tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::string gguf_name(std::string name) {
  const std::pair<const char*, const char*> parts[] = {{"transformer.wte", "token_embd"},
                                                       {"transformer.wpe", "position_embd"},
                                                       {"transformer.ln_f", "output_norm"},
                                                       {"transformer.h.", "blk."},
                                                       {"ln_1", "attn_norm"},
                                                       {"ln_2", "ffn_norm"},
                                                       {"attn.c_attn", "attn_qkv"},
                                                       {"attn.c_proj", "attn_output"},
                                                       {"mlp.c_fc", "ffn_up"},
                                                       {"mlp.c_proj", "ffn_down"}};
  for (const auto& [from, to] : parts) {
    if (const auto at = name.find(from); at != std::string::npos) name.replace(at, std::strlen(from), to);
  }
  return name;
}

void write_gguf(const fs::path& path) {
  const auto source = engine::read_safetensors(kModel / "model.safetensors");
  std::string metadata, tensors, data;
  std::uint64_t num_values = 0;
  const auto number = [&](const char* key, std::uint32_t value) {
    put_text(metadata, key);
    put<std::uint32_t>(metadata, 4);
    put(metadata, value);
    ++num_values;
  };
  put_text(metadata, "general.architecture");
  put<std::uint32_t>(metadata, 8);
  put_text(metadata, "gpt2");
  put_text(metadata, "gpt2.attention.layer_norm_epsilon");
  put<std::uint32_t>(metadata, 6);
  put(metadata, 1e-5f);
  num_values = 2;
  number("gpt2.block_count", 3);
  number("gpt2.context_length", 192);
  number("gpt2.embedding_length", 64);
  number("gpt2.feed_forward_length", 256);
  number("gpt2.attention.head_count", 4);
  number("gpt2.vocab_size", 256);
  for (const engine::StoredTensor& tensor : source->tensors()) {
    std::vector<float> values = values_of(*source, tensor);
    std::vector<std::size_t> shape = tensor.shape;
    const std::string name = gguf_name(tensor.name);
    if (tensor.name.find(".c_") != std::string::npos && shape.size() == 2) {
      std::vector<float> turned;
      for (std::size_t column = 0; column < shape[1]; ++column) {
        for (std::size_t row = 0; row < shape[0]; ++row) turned.push_back(values[row * shape[1] + column]);
      }
      values = std::move(turned);
      std::swap(shape[0], shape[1]);
    }
    put_text(tensors, name);
    put(tensors, static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) put<std::uint64_t>(tensors, *size);  // fastest axis first
    put<std::uint32_t>(tensors, 0);
    put<std::uint64_t>(tensors, data.size());
    for (const float value : values) put(data, value);
    data.resize((data.size() + 31) / 32 * 32);
  }
  std::string header = "GGUF";
  put<std::uint32_t>(header, 3);
  put<std::uint64_t>(header, source->tensors().size());
  put(header, num_values);
  header += metadata + tensors;
  header.resize((header.size() + 31) / 32 * 32);
  std::ofstream(path, std::ios::binary) << header << data;
}

TEST(Gpt2Gguf, GivesTheLogitsOfTheReference) {
  const test::TemporaryFolder folder;
  const fs::path file = folder.path() / "gpt2.gguf";
  write_gguf(file);
  const auto prompts = nlohmann::json::parse(std::ifstream(kModel / "golden.json")).at("prompts");
  const auto expected = engine::read_safetensors(kModel / "golden_logits.safetensors");
  for (const int ranks : {1, 3}) {
    test::with_session(test::exact_setup(file, ranks), [&](engine::Session& session) {
      for (const char* prompt : {"p7", "p33"}) {
        const auto rows = test::prompt_logits(session, prompts.at(prompt).at("tokens").get<std::vector<std::int32_t>>());
        const std::vector<float> reference = values_of(*expected, *expected->find(std::string("logits.") + prompt));
        ASSERT_EQ(rows.size() * 256, reference.size());
        float largest = 0;
        for (std::size_t i = 0; i < reference.size(); ++i) largest = std::max(largest, std::fabs(rows[i / 256][i % 256] - reference[i]));
        EXPECT_LE(largest, 5e-4f) << prompt << ", " << ranks << " ranks";
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
