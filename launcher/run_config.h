#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

enum class Subcommand : std::uint8_t { kBatch, kGenerate, kInspect, kBench, kQuantize, kScore };
enum class BenchKind : std::uint8_t { kOverview, kLatency, kThroughput, kComm };  // `bench`, `bench latency`, ...

/// What one run of the program was asked to do: flags over the configuration file over these defaults. The table in options.cpp says for
/// each field its flag, key, range and help. `std::nullopt` is "not given": whoever uses the field then decides by its own documented rule.
struct RunConfig {
  Subcommand subcommand = Subcommand::kBatch;

  // The model and how it is computed.
  std::string model;                      // GGUF file or Hugging Face folder
  std::string dtype = "auto";             // "auto": as stored; "float32", "float16", "bfloat16": what matrices are converted to
  std::string activation_dtype = "auto";  // "auto", "float32", "int8": what block-quantised weights are multiplied with
  std::string kv_cache_dtype = "auto";    // "auto", "float32", "float16", "bfloat16", "fp8", "int8"
  std::int64_t max_model_len = 0;         // 0: what the model says, or what fits
  std::int64_t max_num_seqs = 64;
  std::int64_t max_num_batched_tokens = 512;
  std::int64_t max_prefill_chunk = 512;
  bool enable_prefix_caching = true;
  std::int64_t block_size = 16;
  std::optional<std::uint64_t> kv_cache_memory;  // bytes of a rank
  std::optional<std::uint64_t> seed;

  // Ranks and machine.
  std::int64_t tensor_parallel_size = 1;
  bool tensor_parallel_size_given = false;  // by flag or file: then the world must have just this size
  std::string comm = "auto";                // "auto", "self", "threads", "shm", "mpi"
  std::string device = "auto";              // "auto", "cpu", "cuda"
  std::string reduction = "canonical";      // "canonical", "fast"
  double gpu_memory_utilization = 0.9;      // share of a GPU's free memory that the KV cache may use
  bool allow_shared_gpu = false;            // several ranks on one GPU
  bool enforce_eager = false;               // no CUDA graphs
  std::string comm_tuning;                  // file that `lockstep bench comm` writes; empty: the built-in table
  std::int64_t threads = 0;                 // of a rank; 0: the affinity mask shared by the local ranks
  std::string bind = "auto";                // "auto": to cores, where it helps; "none"
  double collective_timeout = 120.0;        // seconds
  std::int64_t restarts = 0;
  std::string log_level = "info";
  std::string instruction_set;  // LOCKSTEP_ISA; empty: the best of the machine
  std::string cuda_plugin;      // LOCKSTEP_CUDA_PLUGIN; empty: where it is installed

  // batch and score
  std::string input_file;
  std::string output_file;
  bool overwrite = false;
  bool resume = false;
  bool allow_errors = false;

  // batch
  std::string error_file;
  std::string output_order = "input";  // "input", "completion"
  std::string served_model_name;
  bool retry_errors = false;

  // generate
  std::optional<std::string> prompt;
  std::vector<std::int64_t> prompt_ids;
  bool chat = false;  // the prompt is a user message, put into the model's chat template
  std::string system;
  std::optional<std::int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::vector<std::string> stop;
  std::int64_t n = 1;
  std::int64_t logprobs = -1;  // -1: none
  bool ignore_eos = false;
  bool output_ids = false;
  std::string dump_logits;
  std::string dump_hidden;

  // inspect
  bool print_graph = false;
  std::int64_t rank = 0;  // whose graph

  // quantize
  std::string quantize_output;
  std::string type = "Q8_0";  // "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"

  // score
  std::string perplexity_file;
  std::int64_t window = 0;  // tokens; 0: the context's length
  std::int64_t stride = 0;  // tokens; 0: half the window
  bool bare_text = false;   // no BOS in front of texts, though the tokenizer's rules add it

  // bench
  BenchKind bench = BenchKind::kOverview;
  std::int64_t input_len = 512;
  std::int64_t output_len = 128;
  std::int64_t num_prompts = 32;
  double range_ratio = 0.0;     // how far the lengths of `bench throughput` lie about the given ones
  std::int64_t batch_size = 1;  // of `bench latency`
  std::int64_t warmup = 1;
  std::int64_t iterations = 3;
  bool json = false;  // score too

  // For tests.
  std::int64_t debug_preempt_every = 0;  // 0: never
  bool debug_one_leaf = false;           // bench: products as one chain

  bool operator==(const RunConfig&) const = default;
};

}  // namespace lockstep::launcher
