#include "engine/model/open_model.h"

#include "engine/weights/safetensors.h"
#include "tests/engine/weights/support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void copy_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const auto& entry : std::filesystem::directory_iterator(from))
    std::filesystem::copy_file(entry.path(), to / entry.path().filename());
}

TEST(OpenModel, OpensEachReferenceModel) {
  for (const std::string name :
       {"llama-mha", "llama-gqa", "llama-gqa-bf16", "llama-gqa-fp16", "llama-gqa-sharded", "llama-tied", "llama-bias", "llama-headdim"}) {
    const OpenedModel model = open_model(data_path("models/" + name));
    EXPECT_EQ(model.spec.naming, NamingScheme::kHuggingFace) << name;
    EXPECT_NE(model.weights->find("model.norm.weight"), nullptr) << name;
    EXPECT_THAT(model.spec.eos_ids, ElementsAre(2)) << name;
    EXPECT_FALSE(model.gguf_vocabulary.has_value()) << name;
    EXPECT_EQ(model.weights->bytes_read(), 0u) << name;
    EXPECT_EQ(model.weights->contains("model.layers.0.mlp.down_proj.bias"), model.spec.mlp_bias) << name;
    EXPECT_EQ(model.weights->contains("model.layers.0.self_attn.o_proj.bias"), model.spec.attention_output_bias) << name;
  }
  for (const std::string name : {"llama-gqa-F32", "llama-gqa-F16", "llama-gqa-BF16", "gqa288-Q8_0", "gqa288-Q4_0", "gqa288-Q4_1"}) {
    const OpenedModel model = open_model(data_path("gguf/" + name + ".gguf"));
    EXPECT_EQ(model.spec.naming, NamingScheme::kGguf) << name;
    EXPECT_NE(model.weights->find("output_norm.weight"), nullptr) << name;
    EXPECT_TRUE(model.gguf_vocabulary.has_value()) << name;
    EXPECT_EQ(model.weights->bytes_read(), 0u) << name;
  }
}

TEST(OpenModel, DescribesTheModelInALine) {
  EXPECT_EQ(open_model(data_path("gguf/gqa288-Q4_1.gguf")).description,
            "llama, 2 layers, 9 heads (3 KV) of 32, hidden 288, inner 352, vocabulary 263, GGUF, 21 tensors (5 F32, 16 Q4_1)");
}

TEST(OpenModel, FindsTheChatTemplateWhereverItIs) {
  const TemporaryFolder folder;
  copy_folder(data_path("models/llama-gqa"), folder.path());
  EXPECT_THAT(open_model(folder.path()).chat_template, StartsWith("{{ bos_token }}{% for message in messages %}"));
  folder.write("chat_template.jinja", "its own file");
  EXPECT_EQ(open_model(folder.path()).chat_template, "its own file");
  EXPECT_EQ(open_model(data_path("models/llama-mha")).chat_template, "");
}

TEST(OpenModel, TheHashIsThatOfTheContentAndNotOfThePlace) {
  const TemporaryFolder folder;
  copy_folder(data_path("models/llama-gqa"), folder.path());
  const std::string original = open_model(data_path("models/llama-gqa")).model_hash;
  EXPECT_EQ(original.size(), 32u);
  EXPECT_EQ(open_model(folder.path()).model_hash, original);
  EXPECT_NE(open_model(data_path("models/llama-gqa-bf16")).model_hash, original);

  const std::string weights = file_bytes(folder.path() / "model.safetensors");
  std::string changed = weights;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  folder.write("model.safetensors", changed);
  EXPECT_NE(open_model(folder.path()).model_hash, original) << "one bit of a sampled range";
  folder.write("model.safetensors", weights);
  EXPECT_EQ(open_model(folder.path()).model_hash, original);
  folder.write("generation_config.json", R"({"eos_token_id": 2, "temperature": 0.5})");
  EXPECT_NE(open_model(folder.path()).model_hash, original) << "configuration";
}

TEST(OpenModel, GenerationConfigGivesDefaultsAndEosIds) {
  const TemporaryFolder folder;
  copy_folder(data_path("models/llama-gqa"), folder.path());
  folder.write("generation_config.json", R"({"eos_token_id": [5, 7], "temperature": 0.5})");
  const OpenedModel model = open_model(folder.path());
  EXPECT_THAT(model.spec.eos_ids, ElementsAre(2, 5, 7));
  EXPECT_EQ(model.defaults.temperature, 0.5f);
  EXPECT_EQ(model.defaults.top_p, std::nullopt);
  std::filesystem::remove(folder.path() / "generation_config.json");
  EXPECT_THAT(open_model(folder.path()).spec.eos_ids, ElementsAre(2));
}

/// Tied or not, with or without a head of its own (field report, case 5).
TEST(OpenModel, TheHeadIsTheEmbeddingOrATensorOfItsOwnOrAnError) {
  const TemporaryFolder folder;
  const auto open_with = [&](bool tied, bool head) {
    const std::vector<float> values(8);
    std::vector<FloatTensor> tensors{{"model.embed_tokens.weight", {2, 4}, values}};
    if (head) tensors.push_back({"lm_head.weight", {2, 4}, values});
    write_safetensors(folder.path() / "model.safetensors", tensors);
    folder.write("config.json",
                 std::string(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
      "intermediate_size": 8, "vocab_size": 2, "tie_word_embeddings": )") +
                     (tied ? "true}" : "false}"));
    const OpenedModel model = open_model(folder.path());
    return head_tensor_name(model.spec, *model.weights);
  };
  EXPECT_EQ(open_with(true, false), "model.embed_tokens.weight");
  EXPECT_EQ(open_with(true, true), "model.embed_tokens.weight");
  EXPECT_EQ(open_with(false, true), "lm_head.weight");
  EXPECT_THAT(error_of([&] { open_with(false, false); }), AllOf(HasSubstr("model.safetensors: tensor 'lm_head.weight' is missing"),
                                                                HasSubstr("config.json does not tie"), HasSubstr("tie_word_embeddings")));
}

TEST(OpenModel, AFolderWithOneGgufFileIsThatFile) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(data_path("gguf/gqa288-Q4_0.gguf"), folder.path() / "a.gguf");
  EXPECT_EQ(open_model(folder.path()).model_hash, open_model(data_path("gguf/gqa288-Q4_0.gguf")).model_hash);
  std::filesystem::copy_file(data_path("gguf/gqa288-Q4_0.gguf"), folder.path() / "b.gguf");
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }), HasSubstr("this folder has 2 .gguf files, 'a.gguf' and others: name one"));
}

TEST(OpenModel, RefusesWhatIsNoModelAndSaysWhatOneIs) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name) { return error_of([&] { open_model(folder.path() / name); }); };
  EXPECT_THAT(error(""),
              AllOf(HasSubstr("neither config.json nor a .gguf file"), HasSubstr("a model is a .gguf file, a folder with config.json")));
  EXPECT_THAT(error("none"), HasSubstr("none: there is no"));
  folder.write("model.bin", "x");
  EXPECT_THAT(error("model.bin"), HasSubstr("model.bin: this file is no .gguf file"));
  folder.write("config.json", "{}");
  EXPECT_THAT(error(""), HasSubstr("config.json: architectures: is missing"));
}

}  // namespace
}  // namespace lockstep::engine
