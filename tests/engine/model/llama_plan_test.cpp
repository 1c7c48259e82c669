// The rank graph of the Llama family as text: how a model is cut is reviewed here, without running a rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "engine/model/registry.h"
#include "parallel/plan.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;

ModelSpec example_spec() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.hidden_size = 576;
  spec.num_layers = 2;
  spec.num_heads = 9;
  spec.num_kv_heads = 3;
  spec.head_dim = 64;
  spec.intermediate_size = 1536;
  spec.vocab_size = 49152;
  spec.max_position_embeddings = 8192;
  spec.norm.eps = 1e-5f;
  spec.rope.rotary_dim = 64;
  spec.tie_word_embeddings = true;
  return spec;
}

parallel::Graph graph_with_types(const ModelSpec& spec, device::DType matrices, device::DType embedding) {
  parallel::Graph graph = family_of("llama").build(spec);
  for (parallel::TensorDecl& tensor : graph.tensors) {
    if (tensor.is_vector()) continue;
    tensor.dtype = tensor.shard == parallel::ShardKind::kVocabularyRows ? embedding : matrices;
  }
  graph.dims.block_quantised = device::info(matrices).block_quantised();
  return graph;
}

TEST(LlamaPlan, QuantisedExampleModelOnTheSecondOfTwoRanks) {
  const parallel::RankGraph plan =
      parallel::plan(graph_with_types(example_spec(), device::DType::kQ4_1, device::DType::kQ8_0), 1, 2, device::cpu_activation_for);
  EXPECT_EQ(parallel::print(plan), R"PLAN(rank 1 of 2: query heads 5..9, KV heads 1..3, inner columns 768..1536, vocabulary 24576..49152
n00 embed                             -> x[tok,576]            model.embed_tokens.weight[24576..49152 of 49152, 0..576 of 576] Q8_0
n01 all_reduce       x                -> x[tok,576]            roots of ranks 1+1
n02 rms_norm         x                -> h.int8[tok,576]       model.layers.0.input_layernorm.weight[576]
n03 linear           h.int8           -> qkv[tok,512]          model.layers.0.self_attn.q_proj.weight[320..576 of 576, 0..576 of 576] + model.layers.0.self_attn.k_proj.weight[64..192 of 192, 0..576 of 576] + model.layers.0.self_attn.v_proj.weight[64..192 of 192, 0..576 of 576] Q4_1
n04 rotate_append    qkv              ->
n05 attention        qkv              -> a.int8[tok,256]
n06 linear           a.int8           -> p[tok,576]            model.layers.0.self_attn.o_proj.weight[0..576 of 576, 320..576 of 576] Q4_1, 4 leaves to 3 roots
n07 reduce_add_norm  p, x             -> x, h.int8[tok,576]    model.layers.0.post_attention_layernorm.weight[576]  roots of ranks 2+3
n08 linear           h.int8           -> gate_up[tok,1536]     model.layers.0.mlp.gate_proj.weight[768..1536 of 1536, 0..576 of 576] + model.layers.0.mlp.up_proj.weight[768..1536 of 1536, 0..576 of 576] Q4_1
n09 swiglu           gate_up          -> f.int8[tok,768]
n10 linear           f.int8           -> p[tok,576]            model.layers.0.mlp.down_proj.weight[0..576 of 576, 768..1536 of 1536] Q4_1, 8 leaves to 1 roots
n11 reduce_add_norm  p, x             -> x, h.int8[tok,576]    model.layers.1.input_layernorm.weight[576]  roots of ranks 1+1
n22 select_rows      x                -> x.selected[tok,576]
n23 rms_norm         x.selected       -> h.selected.int8[tok,576]  model.norm.weight[576]
n24 linear           h.selected.int8  -> logits[tok,24576]     model.embed_tokens.weight[24576..49152 of 49152, 0..576 of 576] Q8_0
)PLAN");
}

TEST(LlamaPlan, OneRankHasNoCollectives) {
  const std::string text = parallel::print(
      parallel::plan(graph_with_types(example_spec(), device::DType::kF32, device::DType::kF32), 0, 1, device::cpu_activation_for), true);
  EXPECT_THAT(text, testing::Not(HasSubstr("all_reduce")));
  EXPECT_THAT(text, testing::Not(HasSubstr("reduce_add_norm")));
  EXPECT_THAT(text, testing::Not(HasSubstr("int8")));
}

TEST(LlamaPlan, EveryRowParallelProductIsFollowedByItsAllReduce) {
  const parallel::RankGraph plan =
      parallel::plan(graph_with_types(example_spec(), device::DType::kF16, device::DType::kF16), 2, 3, device::cpu_activation_for);
  std::size_t products = 0;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].op != parallel::RankOp::kLinear || plan.weights[plan.nodes[i].weight].spec.leaves.size() < 2) continue;
    ++products;
    ASSERT_NE(plan.nodes[i + 1].tree, parallel::kNone);
    EXPECT_EQ(plan.nodes[i + 1].input, plan.nodes[i].output);
    EXPECT_EQ(plan.trees[plan.nodes[i + 1].tree].roots_per_rank[2], plan.weights[plan.nodes[i].weight].spec.num_roots());
  }
  EXPECT_EQ(products, 2 * example_spec().num_layers);
}

TEST(LlamaPlan, BiasesOfSplitRowsAreCutAndThoseOfSumsAreAddedOnceByEveryRank) {
  ModelSpec spec = example_spec();
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  const parallel::RankGraph plan =
      parallel::plan(graph_with_types(spec, device::DType::kF32, device::DType::kF32), 1, 2, device::cpu_activation_for);
  for (const parallel::RankNode& node : plan.nodes) {
    if (node.vector == parallel::kNone) continue;
    const bool is_sum = node.op == parallel::RankOp::kAdd || node.op == parallel::RankOp::kAddNorm;
    const std::size_t wanted = is_sum ? spec.hidden_size : plan.weights[node.weight].spec.rows;
    EXPECT_EQ(plan.vectors[node.vector].size, wanted) << node.name;
  }
}

TEST(LlamaPlan, ProjectionsOfDifferentTypesBecomeSeparateProductsIntoOneMatrix) {
  parallel::Graph graph = graph_with_types(example_spec(), device::DType::kQ4_0, device::DType::kQ8_0);
  for (parallel::TensorDecl& tensor : graph.tensors) {
    if (tensor.name == "model.layers.0.self_attn.v_proj.weight") tensor.dtype = device::DType::kF16;
  }
  const parallel::RankGraph plan = parallel::plan(graph, 0, 1, device::cpu_activation_for);
  std::vector<std::size_t> columns;
  for (const parallel::RankNode& node : plan.nodes) {
    if (node.op == parallel::RankOp::kLinear && node.layer == 0 && plan.values[node.output].name == "qkv")
      columns.push_back(node.out_column);
  }
  EXPECT_EQ(columns, (std::vector<std::size_t>{0, 576 + 192}));
}

/// What the files call a tensor of this canonical name.
std::string file_name(const ModelSpec& spec, const std::string& canonical) {
  for (const parallel::TensorDecl& tensor : family_of(spec.architecture).build(spec).tensors)
    if (tensor.name == canonical) return tensor.file_name();
  return "no such tensor";
}

TEST(Registry, NamesTensorsAsGgufFilesDo) {
  ModelSpec spec = example_spec();
  spec.attention_bias = true;
  EXPECT_EQ(file_name(spec, "model.layers.1.self_attn.o_proj.weight"), "model.layers.1.self_attn.o_proj.weight");
  spec.naming = NamingScheme::kGguf;
  EXPECT_EQ(file_name(spec, "model.layers.1.self_attn.o_proj.weight"), "blk.1.attn_output.weight");
  EXPECT_EQ(file_name(spec, "model.layers.0.self_attn.q_proj.bias"), "blk.0.attn_q.bias");
  EXPECT_EQ(file_name(spec, "model.norm.weight"), "output_norm.weight");
  spec.joined_qkv = true;
  EXPECT_EQ(file_name(spec, "model.layers.0.self_attn.q_proj.bias"), "blk.0.attn_qkv.bias");
}

TEST(Registry, NamesTensorsOfABareModelWithoutThePrefixOfTheFamily) {
  ModelSpec spec = example_spec();
  spec.absent_prefix = "model.";
  EXPECT_EQ(file_name(spec, "model.layers.1.input_layernorm.weight"), "layers.1.input_layernorm.weight");
  spec.tie_word_embeddings = false;
  EXPECT_EQ(file_name(spec, "lm_head.weight"), "lm_head.weight");
}

TEST(Registry, AnUnknownArchitectureIsRefusedByName) {
  try {
    family_of("mamba");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'mamba'"));
    EXPECT_THAT(error.what(), HasSubstr("llama"));
  }
}

}  // namespace
}  // namespace lockstep::engine
