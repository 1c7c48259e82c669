#include "engine/model/gguf_config.h"

#include <cstring>

#include "engine/weights/safetensors.h"
#include "tests/engine/weights/support.h"

namespace lockstep::engine {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A llama of which one metadata value may be replaced or left out.
class LlamaFile {
 public:
  LlamaFile() {
    string("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair{"llama.embedding_length", 72u},
                                     {"llama.block_count", 2u},
                                     {"llama.attention.head_count", 9u},
                                     {"llama.attention.head_count_kv", 3u},
                                     {"llama.feed_forward_length", 176u},
                                     {"llama.context_length", 256u},
                                     {"llama.vocab_size", 97u}}) {
      uint32(key, value);
    }
    float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  }
  LlamaFile& string(const std::string& key, std::string_view text) { return set(key, 8, Bytes().text(text).str()); }
  LlamaFile& uint32(const std::string& key, std::uint32_t number) { return set(key, 4, Bytes().number(number).str()); }
  LlamaFile& float32(const std::string& key, float number) { return set(key, 6, Bytes().number(number).str()); }
  LlamaFile& strings(const std::string& key, const std::vector<std::string>& texts) {
    Bytes bytes;
    bytes.number(8u).number(std::uint64_t{texts.size()});
    for (const std::string& text : texts) bytes.text(text);
    return set(key, 9, bytes.str());
  }
  LlamaFile& set(const std::string& key, std::uint32_t kind, std::string encoded) {
    values_[key] = {kind, std::move(encoded)};
    return *this;
  }
  LlamaFile& without(const std::string& key) {
    values_.erase(key);
    return *this;
  }
  LlamaFile& tensor(const std::string& name) {
    tensors_.push_back(name);
    return *this;
  }

  GgufFile read() const {
    GgufBuilder builder;
    for (const auto& [key, value] : values_) builder.value(key, value.first, value.second);
    for (std::size_t i = 0; i < tensors_.size(); ++i) builder.tensor(tensors_[i], {8}, 0, 32 * i);
    builder.data = std::string(32 * tensors_.size(), '\0');
    const TemporaryFolder folder;
    return read_gguf(folder.write("model.gguf", builder.str()));
  }
  ModelSpec spec() const { return spec_from_gguf(read()); }
  std::string error() const {
    const std::string text = error_of([&] { spec(); });
    EXPECT_THAT(text, HasSubstr("model.gguf: ")) << "every error names the file";
    return text;
  }

 private:
  std::map<std::string, std::pair<std::uint32_t, std::string>> values_;
  std::vector<std::string> tensors_;
};

TEST(GgufConfig, AGgufFileAndAFolderOfTheSameModelGiveTheSameSizes) {
  const ModelSpec gguf = spec_from_gguf(read_gguf(data_path("gguf/llama-gqa-F32.gguf")));
  EXPECT_EQ(gguf.hidden_size, 72u);
  EXPECT_EQ(gguf.num_layers, 3u);
  EXPECT_EQ(gguf.num_heads, 9u);
  EXPECT_EQ(gguf.num_kv_heads, 3u);
  EXPECT_EQ(gguf.head_dim, 8u);
  EXPECT_EQ(gguf.intermediate_size, 176u);
  EXPECT_EQ(gguf.vocab_size, 257u);
  EXPECT_EQ(gguf.max_position_embeddings, 256u);
  EXPECT_EQ(gguf.norm.eps, 1e-5f);
  EXPECT_EQ(gguf.rope.theta, 10000.0);
  EXPECT_EQ(gguf.rope.rotary_dim, 8u);
  EXPECT_EQ(gguf.bos_id, 1);
  EXPECT_THAT(gguf.eos_ids, ElementsAre(2));
  EXPECT_EQ(gguf.naming, NamingScheme::kGguf);
  EXPECT_TRUE(gguf.rotary_pairs_interleaved);
  EXPECT_FALSE(gguf.tie_word_embeddings || gguf.attention_bias || gguf.attention_output_bias || gguf.mlp_bias);
}

/// Rows of the GGUF file in the order that stored_row_of gives are the rows of the Hugging Face file: for all heads of q and the fewer ones
/// of k.
TEST(GgufConfig, StoredRowOfUndoesTheRowOrderOfQAndK) {
  const GgufFile gguf = read_gguf(data_path("gguf/llama-gqa-F32.gguf"));
  const ModelSpec spec = spec_from_gguf(gguf);
  const auto folder = read_safetensors_folder(data_path("models/llama-gqa"));
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    for (const std::string name : {"q", "k"}) {
      const StoredTensor& from = *gguf.tensors->find("blk." + std::to_string(layer) + ".attn_" + name + ".weight");
      const StoredTensor& expected = *folder->find("model.layers." + std::to_string(layer) + ".self_attn." + name + "_proj.weight");
      ASSERT_EQ(from.shape, expected.shape);
      std::size_t moved = 0;
      std::vector<std::byte> row(from.columns() * 4), expected_row(row.size());
      for (std::size_t r = 0; r < from.rows(); ++r) {
        moved += stored_row_of(spec, r) != r ? 1 : 0;
        gguf.tensors->read_rows(from, stored_row_of(spec, r), 1, 0, from.columns(), row);
        folder->read_rows(expected, r, 1, 0, from.columns(), expected_row);
        ASSERT_EQ(row, expected_row) << name << " row " << r;
      }
      EXPECT_EQ(moved, from.rows() / 8 * 6);
    }
  }
}

TEST(GgufConfig, AbsentKeysHaveTheirDefaults) {
  const ModelSpec spec = LlamaFile().without("llama.attention.head_count_kv").spec();
  EXPECT_EQ(spec.num_kv_heads, 9u);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.rope.rotary_dim, 8u);
  EXPECT_EQ(spec.bos_id, -1);
  EXPECT_THAT(spec.eos_ids, ElementsAre());
}

TEST(GgufConfig, AnExplicitHeadDimWins) {
  const ModelSpec spec = LlamaFile().uint32("llama.attention.key_length", 24).uint32("llama.attention.value_length", 24).spec();
  EXPECT_EQ(spec.head_dim, 24u);
  EXPECT_EQ(spec.rope.rotary_dim, 24u);
  EXPECT_THAT(LlamaFile().uint32("llama.attention.key_length", 24).uint32("llama.attention.value_length", 16).error(),
              HasSubstr("value_length' is 16"));
  EXPECT_EQ(LlamaFile().uint32("llama.rope.dimension_count", 4).spec().rope.rotary_dim, 4u);
  EXPECT_THAT(LlamaFile().uint32("llama.rope.dimension_count", 10).error(), HasSubstr("rotary dimension is 10; an even number up to"));
}

TEST(GgufConfig, TheVocabularyCountsWhereNoSizeIsStated) {
  EXPECT_EQ(LlamaFile().without("llama.vocab_size").strings("tokenizer.ggml.tokens", {"a", "b", "c"}).spec().vocab_size, 3u);
  EXPECT_EQ(LlamaFile().strings("tokenizer.ggml.tokens", {"a", "b", "c"}).spec().vocab_size, 97u);
  EXPECT_THAT(LlamaFile().uint32("llama.vocab_size", 2).strings("tokenizer.ggml.tokens", {"a", "b", "c"}).error(),
              HasSubstr("is 2, less than the 3 tokens"));
  EXPECT_THAT(LlamaFile().without("llama.vocab_size").error(), HasSubstr("'llama.vocab_size' is missing"));
}

TEST(GgufConfig, EndOfTurnCountsAsEos) {
  const ModelSpec spec = LlamaFile()
                             .uint32("tokenizer.ggml.eos_token_id", 9)
                             .uint32("tokenizer.ggml.eot_token_id", 4)
                             .uint32("tokenizer.ggml.padding_token_id", 0xFFFFFFFFu)
                             .spec();
  EXPECT_THAT(spec.eos_ids, ElementsAre(4, 9));
  EXPECT_EQ(spec.pad_id, -1);
  EXPECT_THAT(LlamaFile().uint32("tokenizer.ggml.eos_token_id", 97).error(),
              HasSubstr("eos_token_id' is 97, outside the vocabulary of 97"));
}

TEST(GgufConfig, TieAndBiasesFollowFromTheTensors) {
  EXPECT_TRUE(LlamaFile().spec().tie_word_embeddings);
  EXPECT_FALSE(LlamaFile().tensor("output.weight").spec().tie_word_embeddings);
  LlamaFile biased;
  for (const char* layer : {"blk.0.", "blk.1."}) {
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) biased.tensor(std::string(layer) + name);
  }
  EXPECT_TRUE(biased.spec().attention_bias);
  EXPECT_FALSE(biased.spec().attention_output_bias || biased.spec().mlp_bias);
  EXPECT_THAT(LlamaFile().tensor("blk.0.attn_q.bias").error(), HasSubstr("tensor 'blk.0.attn_k.bias' is missing"));
}

TEST(GgufConfig, RefusesWhatIsNotSupportedByName) {
  EXPECT_THAT(LlamaFile().string("general.architecture", "mamba").error(),
              AllOf(HasSubstr("is 'mamba', which is not supported; supported: 'bloom', "), HasSubstr("'llama'")));
  EXPECT_THAT(LlamaFile().without("general.architecture").error(), HasSubstr("'general.architecture' is missing"));
  EXPECT_THAT(LlamaFile().string("llama.rope.scaling.type", "ntk").error(),
              HasSubstr("'llama.rope.scaling.type' is 'ntk', which is not supported"));
  EXPECT_THAT(LlamaFile().string("llama.rope.scaling.type", "longrope").error(),
              HasSubstr("is 'longrope', but the tensor 'rope_factors_short.weight' is missing"));
  EXPECT_NO_THROW(LlamaFile().string("llama.rope.scaling.type", "none").spec());
  EXPECT_THAT(LlamaFile().float32("llama.rope.scale_linear", -4.0f).error(), HasSubstr("'llama.rope.scale_linear' is -4"));
  EXPECT_THAT(LlamaFile().uint32("llama.expert_count", 8).error(), HasSubstr("'llama.expert_used_count' is missing"));
  EXPECT_THAT(LlamaFile().uint32("llama.expert_count", 8).uint32("llama.expert_used_count", 9).error(),
              HasSubstr("'llama.expert_used_count' is 9; from 1 to 8 is possible"));
  EXPECT_THAT(LlamaFile().uint32("llama.expert_count", 5000).error(), HasSubstr("'llama.expert_count' is 5000"));
  EXPECT_THAT(LlamaFile().float32("llama.rope.scaling.attn_factor", 2.0f).error(), HasSubstr("'llama.rope.scaling.attn_factor' is 2"));
  EXPECT_NO_THROW(LlamaFile().float32("llama.rope.scaling.attn_factor", 1.0f).spec());
  EXPECT_THAT(LlamaFile().string("llama.rope.scaling.type", "yarn").float32("llama.rope.scaling.yarn_beta_fast", 0.0f).error(),
              HasSubstr("'llama.rope.scaling.yarn_beta_fast' is 0"));
  EXPECT_THAT(LlamaFile().tensor("rope_freqs.weight").error(), HasSubstr("'rope_freqs.weight'")) << "of another shape";
}

/// Keys of other architectures would change what is computed.
TEST(GgufConfig, RefusesConsequentialKeysThatTheArchitectureDoesNotHave) {
  for (const std::string key : {"attention.scale", "attn_logit_softcapping", "logit_scale", "residual_scale", "rope.freq_base_swa"}) {
    EXPECT_THAT(LlamaFile().float32("llama." + key, 2.5f).error(),
                HasSubstr("'llama." + key + "' is 2.5, which is not supported in this architecture"));
    EXPECT_NO_THROW(LlamaFile().float32("llama." + key, 0.0f).spec()) << "says nothing";
  }
  EXPECT_THAT(LlamaFile().float32("llama.rope.scaling.yarn_attn_factor", 0.5f).error(), HasSubstr("is 0.5, which is not supported"));
  EXPECT_NO_THROW(LlamaFile().float32("llama.rope.scaling.yarn_attn_factor", 1.0f).spec());
}

TEST(GgufConfig, SlidingLayersAreAListOrAPeriod) {
  const auto windows = [](LlamaFile file) { return file.uint32("llama.attention.sliding_window", 16).spec().windows; };
  EXPECT_THAT(windows(LlamaFile()), ElementsAre(16, 16));
  EXPECT_THAT(windows(LlamaFile().uint32("llama.attention.sliding_window_pattern", 2)), ElementsAre(16, 0));
  const auto flags = [](std::initializer_list<std::uint8_t> values) {
    Bytes bytes;
    bytes.number(7u).number(std::uint64_t{values.size()});
    for (const std::uint8_t value : values) bytes.number(value);
    return LlamaFile().set("llama.attention.sliding_window_pattern", 9, bytes.str());
  };
  EXPECT_THAT(windows(flags({0, 1})), ElementsAre(0, 16));
  EXPECT_THAT(error_of([&] { windows(flags({1})); }), HasSubstr("sliding_window_pattern' has 1 entries for 2 layers"));
  EXPECT_THAT(LlamaFile().uint32("llama.attention.sliding_window", 0).spec().windows, ElementsAre());
}

TEST(GgufConfig, ReadsRotaryScaling) {
  const RopeSpec linear = LlamaFile().float32("llama.rope.scale_linear", 4.0f).spec().rope;
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  const RopeSpec yarn = LlamaFile()
                            .string("llama.rope.scaling.type", "yarn")
                            .float32("llama.rope.scaling.factor", 8.0f)
                            .uint32("llama.rope.scaling.original_context_length", 64)
                            .spec()
                            .rope;
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.factor, 8.0);
  EXPECT_EQ(yarn.original_positions, 64u);
  EXPECT_EQ(LlamaFile().spec().rope.scaling, RopeScaling::kNone);
}

TEST(GgufConfig, RefusesNumbersOutOfRangeByKeyAndValue) {
  for (const std::string key : {"llama.embedding_length", "llama.block_count", "llama.attention.head_count",
                                "llama.attention.head_count_kv", "llama.feed_forward_length", "llama.context_length", "llama.vocab_size"}) {
    EXPECT_THAT(LlamaFile().uint32(key, 0).error(), HasSubstr("'" + key + "' is 0"));
    EXPECT_THAT(LlamaFile().uint32(key, 0xFFFFFFFFu).error(), HasSubstr("'" + key + "' is 4294967295"));
    EXPECT_THAT(LlamaFile().string(key, "8").error(), HasSubstr("'" + key + "' is a value of kind string"));
  }
  EXPECT_THAT(LlamaFile().without("llama.block_count").error(), HasSubstr("'llama.block_count' is missing"));
  EXPECT_THAT(LlamaFile().uint32("llama.attention.head_count_kv", 2).error(), HasSubstr("key/value heads, 2"));
  EXPECT_THAT(LlamaFile().float32("llama.attention.layer_norm_rms_epsilon", 0.0f).error(), HasSubstr("layer_norm_rms_epsilon' is 0"));
  EXPECT_THAT(LlamaFile().float32("llama.attention.layer_norm_rms_epsilon", std::numeric_limits<float>::quiet_NaN()).error(),
              HasSubstr("layer_norm_rms_epsilon' is"));
  EXPECT_THAT(LlamaFile().float32("llama.rope.freq_base", -1.0f).error(), HasSubstr("freq_base' is -1"));
}

TEST(GgufConfig, RefusesMoreHeadsOrExpertsThanAGraphCanHold) {
  EXPECT_THAT(LlamaFile()
                  .uint32("llama.block_count", 4096)
                  .uint32("llama.attention.head_count", 72)
                  .uint32("llama.attention.key_length", 8)
                  .error(),
              HasSubstr("4096 layers of 72 heads are more than 262144 of these together"));
  EXPECT_THAT(LlamaFile().uint32("llama.block_count", 1024).uint32("llama.expert_count", 4096).uint32("llama.expert_used_count", 2).error(),
              HasSubstr("1024 layers of 4096 experts"));
}

TEST(GgufVocabulary, HoldsWhatTheMetadataSays) {
  const GgufFile file = read_gguf(data_path("gguf/llama-gqa-F32.gguf"));
  const auto vocabulary = vocabulary_from_gguf(file.metadata);
  ASSERT_TRUE(vocabulary.has_value());
  EXPECT_THAT(vocabulary->source, HasSubstr("llama-gqa-F32.gguf"));
  EXPECT_THAT(vocabulary->tokens, SizeIs(257));
  EXPECT_THAT(vocabulary->types, SizeIs(257));
  EXPECT_EQ(vocabulary->bos_id, 1);
  EXPECT_EQ(vocabulary->eos_id, 2);
  EXPECT_EQ(vocabulary->eot_id, -1);
  EXPECT_EQ(vocabulary_from_gguf(LlamaFile().read().metadata), std::nullopt);
}

TEST(GgufVocabulary, OfSentencePieceHasScoresAndEncodes) {
  const auto vocabulary = vocabulary_from_gguf(read_gguf(data_path("gguf/gqa288-Q8_0.gguf")).metadata);
  ASSERT_TRUE(vocabulary.has_value());
  EXPECT_EQ(vocabulary->model, "llama");
  EXPECT_THAT(vocabulary->scores, SizeIs(263));
  EXPECT_EQ(vocabulary->add_space_prefix, -1);
  const auto tokenizer = text::tokenizer_from_gguf(*vocabulary);  // its pieces: bytes, U+2581 (a space), e, t, U+2581 with t
  EXPECT_THAT(tokenizer->encode("te t\n", true), ElementsAre(1, 262, 260, 262, 3 + '\n'));
  EXPECT_EQ(tokenizer->decode(std::vector<text::TokenId>{1, 262, 260, 262, 3 + '\n'}, true), "te t\n");
}

TEST(GgufVocabulary, RefusesTypesThatAreNotThoseOfItsTokens) {
  const auto with_types = [](const std::vector<std::int32_t>& types) {
    Bytes bytes;
    bytes.number(5u).number(std::uint64_t{types.size()});
    for (const std::int32_t type : types) bytes.number(type);
    return LlamaFile().strings("tokenizer.ggml.tokens", {"a", "b"}).set("tokenizer.ggml.token_type", 9, bytes.str()).read();
  };
  EXPECT_THAT(vocabulary_from_gguf(with_types({1, 3}).metadata)->types, ElementsAre(1, 3));
  EXPECT_THAT(error_of([&] { vocabulary_from_gguf(with_types({1}).metadata); }), HasSubstr("token_type' has 1 entries for 2 tokens"));
  EXPECT_THAT(error_of([&] { vocabulary_from_gguf(with_types({1, 7}).metadata); }), HasSubstr("has an entry 7"));
}

}  // namespace
}  // namespace lockstep::engine
