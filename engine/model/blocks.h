#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/spec.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// How the rows of several projections share a stored tensor.
enum class Fusion : std::uint8_t {
  kNone,
  kParts,   // all of q, then all of k, then all of v; gate, then up
  kByHead,  // for each head its q, its k, its v
};

/// The norms of query and key heads.
enum class HeadNorms : std::uint8_t {
  kAlike,      // of each head by itself, all with the same weight (and bias, where the modules say so)
  kEach,       // of each head by itself, with weights of its own: one stored tensor [heads, head_dim]
  kEachApart,  // likewise: a stored tensor for each head, MODULE.norms.N (in GGUF files as kEach)
  kSpanning,   // one norm over all heads
};

/// What x begins with. A module that is empty is none. Position p is row p + position_offset of a table that has max_position_embeddings +
/// position_offset rows: a hard limit of the length.
struct EmbeddingModules {
  std::string tokens;
  std::string positions = {};
  std::size_t position_offset = 0;
  std::string norm = {};
  std::string projection = {};  // of the embedding to x, where the model has one
};

/// The modules of an attention block. Modules are named as in Hugging Face files, without ".weight": those are the canonical names of
/// tensors. In GGUF files a tensor is called after what it is for, the same in all families, so GraphBuilder knows those names; there q, k
/// and v of a `fused` tensor always stand one behind the other, and nothing is `transposed`.
struct AttentionModules {
  std::string q, k, v, o;
  std::string q_norm = {}, k_norm = {};  // empty: none
  std::string sinks = {};                // empty: none; a vector, which files call as the module
  HeadNorms head_norms = HeadNorms::kAlike;
  bool head_norm_bias = false;
  std::string fused = {};  // the stored tensor of q, k and v
  Fusion fusion = Fusion::kNone;
  bool transposed = false;  // all of them are stored [in, out]

  /// module.q_proj, .k_proj, .v_proj, .o_proj, and .q_norm, .k_norm, .sinks where the model has them.
  static AttentionModules standard(const ModelSpec& spec, const std::string& module);
};

/// The modules of a feed-forward block: down(f(gate) * up), or, with an empty gate, down(f(up)).
struct FeedForwardModules {
  std::string gate, up, down;
  std::string fused = {};  // the stored tensor of gate and up, one behind the other
  bool transposed = false;

  static FeedForwardModules standard(const std::string& module);  // module.gate_proj, .up_proj, .down_proj
};

/// A mixture of experts: a router, the experts and, where there is one, the expert of all tokens and its gate.
struct ExpertModules {
  std::string router;
  std::string experts;  // modules `experts`.N.gate ...
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  /// One stored tensor `experts`.fused has gate and up of all experts, row by row in turn, and `experts`.down all of down; the names of
  /// biases end in _bias. Each expert stands as ExpertSpec::stored_in_out says. (In GGUF files there is a tensor each, of rows.)
  std::string fused = {};
  std::string shared = {};  // a feed-forward module with the standard names
  std::string shared_gate = {};
};

/// Builds a graph block by block. A family is a sequence of calls of this (see llama.cpp); what it can not say belongs here, as a block,
/// not into a family.
class GraphBuilder {
 public:
  using ValueId = parallel::ValueId;

  /// A row-parallel product: the sum over the ranks, and the bias that is still to be added, once.
  struct Sum {
    ValueId value = 0;
    std::optional<parallel::TensorId> bias = std::nullopt;
  };
  enum class Branch : std::uint8_t { kAttention, kFeedForward };

  explicit GraphBuilder(const ModelSpec& spec);

  /// Returns x [tokens, hidden], the residual stream: the embedding of the tokens, scaled as the model says.
  ValueId embedding(const EmbeddingModules& modules);
  /// Returns norm(x), a value of this name. `gguf`: what GGUF files call the module, without "blk.N.".
  ValueId norm(ValueId x, const std::string& module, std::size_t layer, const std::string& gguf = {}, const std::string& name = "h");

  /// W_o attention(rotate(W_qkv h)): causal, KV heads shared by groups of query heads.
  Sum attention(ValueId h, const AttentionModules& modules, std::size_t layer);
  Sum feed_forward(ValueId h, const FeedForwardModules& modules, std::size_t layer);
  Sum experts(ValueId h, const ExpertModules& modules, std::size_t layer);

  /// The norm of the sum x, where the layer goes on with it.
  ValueId norm_of_sum(ValueId x, const std::string& module, Branch branch, std::size_t layer);
  /// x += what a branch of the layer gives, or, with `post_norm`, its norm.
  void add(ValueId x, const Sum& sum, Branch branch, std::size_t layer, const std::string& post_norm = {});

  /// logits = W norm(x), for the rows whose logits are wanted; where the model has such, with a projection to the size of the embedding
  /// between the two.
  void head(ValueId x, const std::string& norm_module, const std::string& head_module, const std::string& projection = {});

  parallel::Graph take() { return std::move(graph_); }

 private:
  struct Projection {
    std::string module;
    std::size_t rows = 0;
    std::size_t columns = 0;
    parallel::ShardKind shard = parallel::ShardKind::kReplicated;
    bool rotary_rows = false;
    std::size_t inner = 0;
    parallel::StoredPart part = {};  // named as the module in the files; its shape, where it has one, without the columns
    std::size_t stack_place = 0;     // which it is of those that stand in the stored tensor one behind the other, along the first axis
    bool stored_as_vector = false;   // one row, without an axis for it
    const char* weight_suffix = ".weight";  // of the names in the files
    const char* bias_suffix = ".bias";
  };
  bool is_gguf() const { return spec_.naming == NamingScheme::kGguf; }
  Projection whole_projection(const std::string& module, std::size_t rows, std::size_t columns) const;
  std::string file_name(const std::string& module, const std::string& gguf) const;  // of a module of the whole model
  std::string file_name(const std::string& module, const std::string& gguf, std::size_t layer) const;
  enum class ExpertPart : std::uint8_t { kGate, kUp, kDown };
  Projection expert_projection(const ExpertModules& modules, ExpertPart part, std::size_t expert, std::size_t layer) const;
  parallel::TensorId weight_of(const Projection& projection);
  parallel::TensorId bias_of(const Projection& projection);
  parallel::TensorId norm_weight(const std::string& module, const std::string& stored, std::size_t columns,
                                 parallel::ShardKind shard = parallel::ShardKind::kReplicated, bool rotary_rows = false);
  std::vector<Projection> query_key_value(const AttentionModules& modules, std::size_t layer) const;
  void norm_heads(ValueId qkv, const AttentionModules& modules, std::size_t layer);
  void norm_of_heads(parallel::Node& norm, const AttentionModules& modules, bool queries, std::size_t layer);
  std::size_t attention_of(std::size_t layer);
  std::size_t rotary_of(const RopeSpec& rope);
  std::size_t embedding_size() const { return spec_.embedding_size != 0 ? spec_.embedding_size : spec_.hidden_size; }
  std::size_t inner_of(std::size_t size) const;
  ValueId inner_product(ValueId h, const FeedForwardModules& modules, std::size_t which, std::size_t layer,
                        const std::string& gguf_suffix = {});
  void linear(ValueId in, ValueId out, const std::vector<Projection>& projections, bool bias, std::size_t layer);
  device::Gating gating() const;
  void scale(ValueId value, float factor, std::size_t layer);
  parallel::TensorId tensor(parallel::TensorDecl tensor);
  ValueId value(const std::string& name, parallel::Width width, std::size_t inner = 0, std::size_t columns = 0);
  parallel::Node& node(parallel::Op op, std::size_t layer);

  const ModelSpec& spec_;
  parallel::Graph graph_;
  std::map<std::string, parallel::TensorId> tensors_;  // by name
};

/// A branch of a layer, of modules that begin with `module`.
using BuildBranch = GraphBuilder::Sum (*)(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                                          std::size_t layer);
GraphBuilder::Sum standard_attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                                     std::size_t layer);
GraphBuilder::Sum standard_feed_forward(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                                        std::size_t layer);

/// What stands around the branches of a decoder, as most models name it. Norms of a layer are named within it. An empty norm is none: the
/// branch reads x, or, side by side with attention, what that reads.
struct DecoderModules {
  EmbeddingModules embedding = {.tokens = "model.embed_tokens"};
  std::string layers = "model.layers.";
  std::string attention_norm = "input_layernorm";
  std::string attention_post_norm = {};  // of what attention gives, before it is added
  std::string feed_forward_norm = "post_attention_layernorm";
  std::string feed_forward_norm_gguf = "ffn_norm";
  std::string feed_forward_post_norm = {};
  std::string final_norm = "model.norm";
  std::string head = "lm_head";  // where it is not the embedding
  std::string head_projection = {};
  BuildBranch attention = standard_attention;
  BuildBranch feed_forward = standard_feed_forward;
};

/// The decoder that all families are. With spec.parallel_residual both branches of a layer read the same x; with spec.norms_of_sums
/// x = norm(x + branch(x)).
parallel::Graph build_decoder(const ModelSpec& spec, const DecoderModules& modules = {});

}  // namespace lockstep::engine
