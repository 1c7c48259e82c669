#include "engine/quantise/quantise_model.h"

#include <cmath>
#include <cstdlib>
#include <map>

#include <nlohmann/json.hpp>

#include "engine/model/open_model.h"
#include "engine/model/rope.h"
#include "engine/quantise/hf_metadata.h"
#include "engine/quantise/hf_vocabulary.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/gguf.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/weights/support.h"
#include "tests/support/session_run.h"
#include "tests/support/tiny_model.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using device::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Quantises and returns what was reported, by name.
std::map<std::string, QuantisedTensor> run(const fs::path& model, const fs::path& output, DType type, std::size_t threads = 1,
                                           bool overwrite = false) {
  std::map<std::string, QuantisedTensor> tensors;
  quantise_model({.model = model, .output = output, .type = type, .threads = threads, .overwrite = overwrite},
                 [&](const QuantisedTensor& tensor) { tensors.emplace(tensor.name, tensor); });
  return tensors;
}

std::vector<float> values_of(const WeightSource& source, const std::string& name) {
  const StoredTensor& tensor = *source.find(name);
  std::vector<std::byte> bytes(tensor.rows() * device::row_bytes(tensor.dtype, tensor.columns()));
  source.read_rows(tensor, 0, tensor.rows(), 0, tensor.columns(), bytes);
  std::vector<float> values(tensor.rows() * tensor.columns());
  device::dequantise(tensor.dtype, bytes, values);
  return values;
}

/// Root mean square, and the largest magnitude, of the differences.
std::pair<double, double> difference(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0.0, most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = static_cast<double>(a.at(i)) - b.at(i);
    squares += error * error;
    most = std::max(most, std::fabs(error));
  }
  return {std::sqrt(squares / static_cast<double>(a.size())), most};
}

/// A model whose rows are whole super-blocks.
fs::path wide_model(const TemporaryFolder& folder, std::size_t hidden = 256) {
  const fs::path path = folder.path() / "wide.gguf";
  test::write_tiny_gguf(path, DType::kF32, {.hidden = hidden, .num_heads = 8, .num_kv_heads = 2, .feed_forward = 512});
  return path;
}

TEST(QuantiseModel, EachTypeIsWrittenWithTheErrorThatIsReported) {
  const TemporaryFolder folder;
  const fs::path model = wide_model(folder);
  const auto source = read_gguf(model);
  const std::map<DType, DType> head_of{{DType::kF16, DType::kF16},
                                       {DType::kQ8_0, DType::kQ8_0},
                                       {DType::kQ4_0, DType::kQ8_0},
                                       {DType::kQ4_K, DType::kQ6_K},
                                       {DType::kQ6_K, DType::kQ6_K}};
  for (const auto& [type, head] : head_of) {
    const fs::path output = folder.path() / (std::string(device::info(type).name) + ".gguf");
    const auto tensors = run(model, output, type);
    const GgufFile written = read_gguf(output);
    ASSERT_EQ(tensors.size(), source.tensors->tensors().size());
    for (const auto& [name, tensor] : tensors) {
      const StoredTensor& stored = *written.tensors->find(name);
      EXPECT_EQ(stored.dtype, tensor.to) << name;
      EXPECT_EQ(stored.shape, tensor.shape) << name;
      EXPECT_EQ(stored.bytes, tensor.bytes) << name;
      EXPECT_EQ(tensor.from, "F32");
      const bool is_vector = tensor.shape.size() == 1;
      EXPECT_EQ(tensor.to, is_vector ? DType::kF32 : name == "output.weight" ? head : type) << name;
      EXPECT_EQ(tensor.reason.empty(), !is_vector && tensor.to == type) << name;
      const auto [rms_error, max_error] = difference(values_of(*written.tensors, name), values_of(*source.tensors, name));
      EXPECT_NEAR(tensor.rms_error, rms_error, 1e-9) << name;
      EXPECT_NEAR(tensor.max_error, max_error, 1e-9) << name;
      EXPECT_EQ(rms_error == 0.0, is_vector) << name;
      EXPECT_LT(rms_error, is_vector ? 1.0 : 0.1 * tensor.rms) << name;
    }
  }
}

TEST(QuantiseModel, MetadataAreCarriedOverAndTheResultOpens) {
  const TemporaryFolder folder;
  const fs::path model = wide_model(folder);
  run(model, folder.path() / "q.gguf", DType::kQ4_K);
  const GgufFile given = read_gguf(model), written = read_gguf(folder.path() / "q.gguf");
  for (const auto& [key, value] : given.metadata.values()) EXPECT_EQ(written.metadata.values().at(key), value) << key;
  EXPECT_EQ(written.metadata.unsigned_integer("general.file_type"), 15u);
  EXPECT_EQ(written.metadata.unsigned_integer("general.quantization_version"), 2u);
  EXPECT_EQ(written.metadata.values().size(), given.metadata.values().size() + 2);
  EXPECT_THAT(open_model(folder.path() / "q.gguf").description, HasSubstr("(5 F32, 15 Q4_K, 1 Q6_K)"));
}

TEST(QuantiseModel, TheBytesDoNotDependOnTheThreads) {
  const TemporaryFolder folder;
  const fs::path model = wide_model(folder, 1024);  // matrices of several pieces
  const auto alone = run(model, folder.path() / "1.gguf", DType::kQ4_K, 1);
  for (const std::size_t threads : {2u, 5u}) {
    const fs::path output = folder.path() / (std::to_string(threads) + ".gguf");
    const auto tensors = run(model, output, DType::kQ4_K, threads);
    EXPECT_EQ(file_bytes(output), file_bytes(folder.path() / "1.gguf")) << threads << " threads";
    for (const auto& [name, tensor] : tensors) EXPECT_EQ(tensor.rms_error, alone.at(name).rms_error) << name;
  }
}

TEST(QuantiseModel, RowsThatAreNoWholeBlocksKeepAHigherTypeAndSayWhy) {
  const TemporaryFolder folder;
  const auto wide = run(data_path("gguf/gqa288-Q8_0.gguf"), folder.path() / "a.gguf", DType::kQ6_K);
  EXPECT_EQ(wide.at("blk.0.attn_q.weight").to, DType::kQ8_0) << "288 columns";
  EXPECT_THAT(wide.at("blk.0.attn_q.weight").reason, HasSubstr("rows of 288 are no whole blocks of 256"));
  const auto odd = run(data_path("gguf/llama-gqa-F32.gguf"), folder.path() / "b.gguf", DType::kQ4_0);
  EXPECT_EQ(odd.at("blk.0.attn_q.weight").to, DType::kF16) << "72 columns";
  EXPECT_THAT(odd.at("blk.0.attn_q.weight").reason, HasSubstr("rows of 72 are no whole blocks of 32"));
}

TEST(QuantiseModel, WhatIsQuantisedAlreadyIsNotQuantisedAgainToAsManyBits) {
  const TemporaryFolder folder;
  const fs::path given = data_path("gguf/gqa288-Q4_0.gguf");
  const auto kept = run(given, folder.path() / "kept.gguf", DType::kQ8_0);
  const QuantisedTensor& query = kept.at("blk.0.attn_q.weight");
  EXPECT_EQ(query.to, DType::kQ4_0);
  EXPECT_THAT(query.reason, HasSubstr("quantising again would only add error"));
  const auto file = read_gguf(folder.path() / "kept.gguf");
  EXPECT_EQ(values_of(*file.tensors, "blk.0.attn_q.weight"), values_of(*read_gguf(given).tensors, "blk.0.attn_q.weight"));
  const auto smaller = run(data_path("gguf/gqa288-Q8_0.gguf"), folder.path() / "smaller.gguf", DType::kQ4_0);
  EXPECT_EQ(smaller.at("blk.0.attn_q.weight").to, DType::kQ4_0);
}

TEST(QuantiseModel, AnExistingFileIsLeftAloneUnlessItMayBeReplaced) {
  const TemporaryFolder folder;
  const fs::path model = wide_model(folder);
  const fs::path output = folder.write("there.gguf", "precious");
  EXPECT_THAT(error_of([&] { run(model, output, DType::kQ8_0); }), AllOf(HasSubstr("there.gguf"), HasSubstr("--overwrite replaces it")));
  EXPECT_EQ(file_bytes(output), "precious");
  run(model, output, DType::kQ8_0, 1, true);
  EXPECT_NO_THROW(open_model(output));
  EXPECT_THAT(error_of([&] { run(model, model, DType::kQ8_0, 1, true); }), HasSubstr("this is the model that is to be read"));
  EXPECT_FALSE(fs::exists(folder.path() / "there.gguf.partial"));
}

TEST(QuantiseModel, AWeightThatDoesNotFitIsNamedAndNothingIsLeftBehind) {
  const TemporaryFolder folder;
  const fs::path model = folder.path() / "nan.gguf";
  test::write_tiny_gguf(model, DType::kF32, {.nan_token = 7});
  const std::string error = error_of([&] { run(model, folder.path() / "out.gguf", DType::kQ8_0); });
  EXPECT_THAT(error, AllOf(HasSubstr("nan.gguf: tensor 'token_embd.weight'"), HasSubstr("a value is not finite")));
  EXPECT_FALSE(fs::exists(folder.path() / "out.gguf"));
  EXPECT_FALSE(fs::exists(folder.path() / "out.gguf.partial"));
}

TEST(QuantiseModel, AFolderBecomesTheGgufFileThatTheReferenceConverterMakesOfIt) {
  const TemporaryFolder folder;
  const fs::path output = folder.path() / "folder.gguf";
  const auto tensors = run(data_path("models/llama-gqa"), output, DType::kF16);
  const GgufFile written = read_gguf(output), reference = read_gguf(data_path("gguf/llama-gqa-F16.gguf"));
  EXPECT_EQ(tensors.size(), reference.tensors->tensors().size());
  for (const StoredTensor& tensor : reference.tensors->tensors()) {
    const StoredTensor* found = written.tensors->find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(values_of(*written.tensors, tensor.name), values_of(*reference.tensors, tensor.name))
        << tensor.name << ": rows of q and k are moved";
  }
  const OpenedModel given = open_model(data_path("models/llama-gqa")), opened = open_model(output);
  EXPECT_EQ(opened.chat_template, given.chat_template);
  EXPECT_EQ(opened.spec.eos_ids, given.spec.eos_ids);
  EXPECT_EQ(opened.spec.bos_id, given.spec.bos_id);
}

TEST(QuantiseModel, BiasesOfQueriesAndKeysAreMovedAsTheirRowsAre) {
  const TemporaryFolder folder;
  const fs::path output = folder.path() / "bias.gguf";
  run(data_path("models/llama-bias"), output, DType::kF16);
  const OpenedModel given = open_model(data_path("models/llama-bias")), opened = open_model(output);
  const auto plain = values_of(*given.weights, "model.layers.0.self_attn.q_proj.bias");
  const auto moved = values_of(*opened.weights, "blk.0.attn_q.bias");
  ASSERT_EQ(plain.size(), moved.size());
  for (std::size_t row = 0; row < plain.size(); ++row) EXPECT_EQ(moved[stored_row_of(opened.spec, row)], plain[row]) << row;
  EXPECT_NE(plain, moved);
  EXPECT_EQ(values_of(*given.weights, "model.layers.0.self_attn.v_proj.bias"), values_of(*opened.weights, "blk.0.attn_v.bias"));
}

/// llama-gqa-fp16 with this rotary scaling.
fs::path scaled_folder(const TemporaryFolder& folder, const std::string& scaling) {
  const fs::path model = folder.path() / "model";
  fs::create_directory(model);
  nlohmann::json config = nlohmann::json::parse(file_bytes(data_path("models/llama-gqa-fp16/config.json")));
  config["rope_scaling"] = nlohmann::json::parse(scaling);
  folder.write("model/config.json", config.dump());
  fs::copy_file(data_path("models/llama-gqa-fp16/model.safetensors"), model / "model.safetensors");
  return model;
}

TEST(QuantiseModel, RotaryScalingOfAFolderIsThatOfTheFileToTheBit) {
  for (const char* scaling :
       {R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                  "original_max_position_embeddings": 64})",
        R"({"rope_type": "linear", "factor": 4.0})", R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})",
        R"({"rope_type": "yarn", "factor": 2.5, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0})"}) {
    SCOPED_TRACE(scaling);
    const TemporaryFolder folder;
    const fs::path model = scaled_folder(folder, scaling), output = folder.path() / "out.gguf";
    run(model, output, DType::kF16);
    const parallel::Rotary given = rotary_of(open_model(model).spec.rope), written = rotary_of(open_model(output).spec.rope);
    EXPECT_TRUE(given == written);
    EXPECT_FALSE(given == rotary_of(open_model(data_path("models/llama-gqa-fp16")).spec.rope));
    // The weights are the same numbers, so that the logits show whether all else is.
    std::vector<std::vector<float>> logits[2];
    for (const bool from_file : {false, true}) {
      test::with_session(test::exact_setup(from_file ? output : model, 1), [&](Session& session) {
        logits[from_file ? 1 : 0] = test::prompt_logits(session, {1, 30, 31, 32, 200, 7, 9});
      });
    }
    EXPECT_TRUE(logits[0] == logits[1]);
    // And once more, from file to file.
    run(output, folder.path() / "again.gguf", DType::kF16);
    EXPECT_TRUE(rotary_of(open_model(folder.path() / "again.gguf").spec.rope) == given);
  }
}

TEST(QuantiseModel, RotaryScalingThatGgufCanNotStateIsRefused) {
  for (const char* scaling : {R"({"rope_type": "dynamic", "factor": 2.0})", R"({"rope_type": "yarn", "factor": 4.0, "truncate": false})",
                              R"({"rope_type": "linear", "factor": 1.1})"}) {  // a factor that is no fp32 number
    const TemporaryFolder folder;
    const fs::path model = scaled_folder(folder, scaling), output = folder.path() / "out.gguf";
    EXPECT_THAT(error_of([&] { run(model, output, DType::kF16); }), AllOf(HasSubstr("config.json"), HasSubstr("GGUF"))) << scaling;
    EXPECT_FALSE(fs::exists(output));
  }
}

// LOCKSTEP_GOLDENS names the folder of all reference data, which are too large for this repository.
TEST(QuantiseModel, TheErrorIsNoLargerThanInFilesOfTheReferenceQuantiser) {
  const char* goldens = std::getenv("LOCKSTEP_GOLDENS");
  if (goldens == nullptr) GTEST_SKIP() << "LOCKSTEP_GOLDENS is not set";
  const TemporaryFolder folder;
  const fs::path models = fs::path(goldens) / "gguf/models";
  const GgufFile exact = read_gguf(models / "gqa288-F32.gguf");
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const std::string name(device::info(type).name);
    const auto tensors = run(models / "gqa288-F32.gguf", folder.path() / (name + ".gguf"), type);
    const GgufFile reference = read_gguf(models / ("gqa288-" + name + ".gguf"));
    std::size_t compared = 0;
    for (const auto& [tensor, result] : tensors) {
      if (result.to != type || reference.tensors->find(tensor)->dtype != type) continue;
      const auto [rms, most] = difference(values_of(*reference.tensors, tensor), values_of(*exact.tensors, tensor));
      EXPECT_LE(result.rms_error, rms) << name << ": " << tensor;
      EXPECT_LE(result.max_error, most * 1.00001) << name << ": " << tensor;
      ++compared;
    }
    EXPECT_GT(compared, 10u) << name;
  }
}

TEST(QuantiseModel, TheTokenizerOfTheFileIsThatOfTheFolder) {
  // llama-gqa with other tokenizers: byte-level BPE with the splits of three families, and SentencePiece's BPE.
  for (const auto& [name, pre] :
       std::map<std::string, std::string>{{"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"spm-bpe", "default"}}) {
    const TemporaryFolder folder;
    nlohmann::json config = nlohmann::json::parse(file_bytes(data_path("models/llama-gqa/config.json")));
    const auto golden = nlohmann::json::parse(file_bytes(data_path("tokenizers/" + name + "/golden.json")));
    const auto expected = text::tokenizer_from_json(name, file_bytes(data_path("tokenizers/" + name + "/tokenizer.json")));
    folder.write("tokenizer.json", file_bytes(data_path("tokenizers/" + name + "/tokenizer.json")));
    // A model of that many tokens: the matrices do not matter.
    const std::size_t vocabulary = expected->vocab_size();
    config["vocab_size"] = vocabulary;
    config["tie_word_embeddings"] = true;
    folder.write("config.json", config.dump());
    const auto source = read_safetensors(data_path("models/llama-gqa/model.safetensors"));
    std::vector<std::vector<float>> values;
    std::vector<FloatTensor> tensors;
    values.reserve(source->tensors().size());
    for (const StoredTensor& tensor : source->tensors()) {
      const bool embedding = tensor.name == "model.embed_tokens.weight";
      values.push_back(embedding ? std::vector<float>(vocabulary * tensor.columns(), 0.5f) : values_of(*source, tensor.name));
      tensors.push_back({tensor.name, embedding ? std::vector<std::size_t>{vocabulary, tensor.columns()} : tensor.shape, values.back()});
    }
    write_safetensors(folder.path() / "model.safetensors", tensors);
    run(folder.path(), folder.path() / "out.gguf", DType::kF16);
    const OpenedModel opened = open_model(folder.path() / "out.gguf");
    ASSERT_TRUE(opened.gguf_vocabulary.has_value());
    EXPECT_EQ(opened.gguf_vocabulary->pre, pre);
    const auto found = text::tokenizer_from_gguf(*opened.gguf_vocabulary);
    std::size_t cases = 0;
    for (const auto& each : golden["cases"]) {
      const auto text = each["text"].get<std::string>();
      EXPECT_EQ(found->encode(text, false), expected->encode(text, false)) << name << ": " << text;
      EXPECT_EQ(found->encode(text, true), expected->encode(text, true)) << name << ": " << text;
      ++cases;
    }
    EXPECT_GT(cases, 100u);
  }
}

TEST(QuantiseModel, VocabularyAndMergesApartSayTheSameAsInATokenizerJson) {
  const auto document = nlohmann::json::parse(file_bytes(data_path("tokenizers/gpt2/tokenizer.json")));
  const TemporaryFolder together, apart;
  together.write("tokenizer.json", document.dump());
  nlohmann::json vocabulary = document["model"]["vocab"];
  for (const auto& token : document["added_tokens"]) vocabulary[token["content"].get<std::string>()] = token["id"];
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : document["model"]["merges"])
    merges += merge.is_string() ? merge.get<std::string>() + "\n" : merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  apart.write("vocab.json", vocabulary.dump());
  apart.write("merges.txt", merges);
  ModelSpec spec;
  spec.vocab_size = vocabulary.size();
  const auto expected = vocabulary_from_folder(together.path(), spec), found = vocabulary_from_folder(apart.path(), spec);
  ASSERT_TRUE(expected && found);
  EXPECT_EQ(found->model, "gpt2");
  EXPECT_EQ(found->pre, expected->pre);
  EXPECT_EQ(found->tokens, expected->tokens);
  EXPECT_EQ(found->types, expected->types);
  EXPECT_EQ(found->merges, expected->merges);
}

}  // namespace
}  // namespace lockstep::engine
