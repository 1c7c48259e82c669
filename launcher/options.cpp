#include "launcher/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::launcher {
namespace {

using Store = std::function<void(RunConfig&, std::span<const Scalar>)>;

struct Binding {
  OptionKind kind;
  Store store;
};

template <class Field>
struct ValueOf {
  using Type = Field;
};
template <class Field>
struct ValueOf<std::optional<Field>> {
  using Type = Field;
};

Binding text(std::string RunConfig::*field) {
  return {OptionKind::kText,
          [field](RunConfig& config, std::span<const Scalar> values) { config.*field = std::get<std::string>(values.back()); }};
}

Binding text(std::optional<std::string> RunConfig::*field) {
  return {OptionKind::kText,
          [field](RunConfig& config, std::span<const Scalar> values) { config.*field = std::get<std::string>(values.back()); }};
}

Binding choice(std::string RunConfig::*field, std::vector<std::string> choices) {
  return {OptionKind::kText, [field, choices = std::move(choices)](RunConfig& config, std::span<const Scalar> values) {
            const std::string& value = std::get<std::string>(values.back());
            if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
              throw UsageError(fmt::format("'{}' is none of {}", value, fmt::join(choices, ", ")));
            }
            config.*field = value;
          }};
}

template <class Field>
Binding integer(Field RunConfig::*field, std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  return {OptionKind::kInteger, [=](RunConfig& config, std::span<const Scalar> values) {
            const std::int64_t value = std::get<std::int64_t>(values.back());
            if (value < least) throw UsageError(fmt::format("{} is below {}", value, least));
            if (value > most) throw UsageError(fmt::format("{} is above {}", value, most));
            config.*field = static_cast<typename ValueOf<Field>::Type>(value);
          }};
}

template <class Field>
Binding real(Field RunConfig::*field, double least, double most = std::numeric_limits<double>::max()) {
  return {OptionKind::kReal, [=](RunConfig& config, std::span<const Scalar> values) {
            const double value = std::get<double>(values.back());
            if (!(value >= least)) throw UsageError(fmt::format("{} is below {}", value, least));
            if (value > most) throw UsageError(fmt::format("{} is above {}", value, most));
            config.*field = value;
          }};
}

Binding toggle(bool RunConfig::*field) {
  return {OptionKind::kSwitch,
          [field](RunConfig& config, std::span<const Scalar> values) { config.*field = std::get<bool>(values.back()); }};
}

Binding bytes(std::optional<std::uint64_t> RunConfig::*field) {
  return {OptionKind::kBytes, [field](RunConfig& config, std::span<const Scalar> values) {
            const std::int64_t value = std::get<std::int64_t>(values.back());
            if (value <= 0) throw UsageError(fmt::format("{} bytes are too few", value));
            config.*field = static_cast<std::uint64_t>(value);
          }};
}

Binding texts(std::vector<std::string> RunConfig::*field) {
  return {OptionKind::kTexts, [field](RunConfig& config, std::span<const Scalar> values) {
            (config.*field).clear();
            for (const Scalar& value : values) (config.*field).push_back(std::get<std::string>(value));
          }};
}

Binding integers(std::vector<std::int64_t> RunConfig::*field, std::int64_t least, std::int64_t most) {
  return {OptionKind::kIntegers, [=](RunConfig& config, std::span<const Scalar> values) {
            (config.*field).clear();
            for (const Scalar& scalar : values) {
              const std::int64_t value = std::get<std::int64_t>(scalar);
              if (value < least || value > most) throw UsageError(fmt::format("{} is not within {} to {}", value, least, most));
              (config.*field).push_back(value);
            }
          }};
}

Binding tensor_parallel_size() {
  Binding binding = integer(&RunConfig::tensor_parallel_size, 1, 4096);
  binding.store = [store = binding.store](RunConfig& config, std::span<const Scalar> values) {
    store(config, values);
    config.tensor_parallel_size_given = true;
  };
  return binding;
}

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

struct OptionTable {
  std::vector<Option> options;
  std::vector<Subcommand> used_by;
  std::string group;

  void section(std::string name, std::vector<Subcommand> subcommands) {
    group = std::move(name);
    used_by = std::move(subcommands);
  }
  void add(std::string name, Binding binding, std::string value_name, std::string help, std::string alias = "") {
    options.push_back({std::move(name), std::move(alias), binding.kind, used_by, group, std::move(value_name), std::move(help),
                       std::move(binding.store)});
  }
};

void add_common_options(OptionTable& table) {
  using C = RunConfig;
  const std::vector<Subcommand> running = {Subcommand::kBatch, Subcommand::kGenerate, Subcommand::kBench, Subcommand::kScore};
  std::vector<Subcommand> all = running;
  all.push_back(Subcommand::kInspect);

  table.section("Model", all);
  table.add("model", text(&C::model), "PATH", "GGUF file or Hugging Face folder", "m");
  table.add("dtype", choice(&C::dtype, {"auto", "float32", "float16", "bfloat16"}), "TYPE",
            "auto: weights as stored (on the CPU with int8 activations where they are block-quantised); float32: exact");
  table.add("activation-dtype", choice(&C::activation_dtype, {"auto", "float32", "int8"}), "TYPE",
            "what block-quantised weights are multiplied with; float32: exact, and the weights stay as small as stored");
  table.add("kv-cache-dtype", choice(&C::kv_cache_dtype, {"auto", "float32", "float16", "bfloat16", "fp8", "int8"}), "TYPE",
            "how keys and values are stored (fp8, int8: with a scale for each token and head)");
  table.add("max-model-len", integer(&C::max_model_len, 0, kMaxInt32), "N",
            "tokens of prompt and answer together (0: the model's, or what fits)");

  table.section("Scheduling", running);
  table.add("max-num-seqs", integer(&C::max_num_seqs, 1, 1 << 20), "N", "sequences computed together at most");
  table.add("max-num-batched-tokens", integer(&C::max_num_batched_tokens, 1, 1 << 24), "N", "tokens of one step at most");
  table.add("enable-prefix-caching", toggle(&C::enable_prefix_caching), "",
            "let requests that begin alike share the keys and values of that (never in bench)");
  table.add("max-prefill-chunk", integer(&C::max_prefill_chunk, 1, 1 << 24), "N", "prompt tokens of one sequence in a step at most");
  table.add("block-size", integer(&C::block_size, 16, 4096), "N", "tokens of a block of the KV cache, a multiple of 16");
  table.add("kv-cache-memory", bytes(&C::kv_cache_memory), "BYTES",
            "memory of a rank's KV cache: 512M, 2G (default: a share of what is free)");
  table.add("seed", integer(&C::seed, 0), "N", "seed of the job (default: drawn and recorded)");

  table.section("Ranks", all);
  table.add("tensor-parallel-size", tensor_parallel_size(), "N", "ranks that share the model", "tp");

  table.section("Ranks", running);
  table.add("comm", choice(&C::comm, {"auto", "self", "threads", "shm", "mpi"}), "KIND",
            "how ranks exchange data (auto: shm on one machine, else mpi)");
  table.add("device", choice(&C::device, {"auto", "cpu", "cuda"}), "KIND", "auto (GPUs where all ranks have one), cpu or cuda");
  table.add("reduction", choice(&C::reduction, {"canonical", "fast"}), "KIND",
            "canonical: the same bits for any number of ranks; fast: as NCCL and cuBLAS like it (GPUs only)");
  table.add("gpu-memory-utilization", real(&C::gpu_memory_utilization, 0.01, 1.0), "SHARE",
            "of a GPU's memory that is free behind the weights, for the KV cache");
  table.add("enforce-eager", toggle(&C::enforce_eager), "", "launch every kernel of a decode step instead of a recorded graph");
  table.add("allow-shared-gpu", toggle(&C::allow_shared_gpu), "", "let several ranks use one GPU");
  table.add("comm-tuning", text(&C::comm_tuning), "FILE", "which GPU transport for which size: `lockstep bench comm` writes it");
  table.add("threads", integer(&C::threads, 0, 4096), "N",
            "threads of a rank (0: one for each core that it may use, the cores shared out over the ranks there); no more than it has "
            "processors");
  table.options.back().used_by.push_back(Subcommand::kQuantize);
  table.add("bind", choice(&C::bind, {"auto", "none"}), "KIND",
            "auto: threads keep to the cores of their rank, each to its own where they fill them; none: anywhere");
  table.add("collective-timeout", real(&C::collective_timeout, 0.1, 1e6), "SECONDS", "how late a rank may be before the job fails");
  table.add("log-level", choice(&C::log_level, {"debug", "info", "warning", "error"}), "LEVEL", "least important message that is shown");
}

void add_batch_options(OptionTable& table) {
  using C = RunConfig;
  table.section("Files", {Subcommand::kBatch, Subcommand::kScore});
  table.add("input-file", text(&C::input_file), "FILE", "requests, one JSON object a line", "i");
  table.add("output-file", text(&C::output_file), "FILE", "answers; absent until the job is complete", "o");
  table.add("overwrite", toggle(&C::overwrite), "", "replace the output of an earlier run");
  table.options.back().used_by.push_back(Subcommand::kQuantize);
  table.add("resume", toggle(&C::resume), "", "go on where an earlier run stopped");
  table.add("restarts", integer(&C::restarts, 0, 1000), "N", "start a failed job again, with --resume, up to N times");
  table.add("allow-errors", toggle(&C::allow_errors), "", "exit with 0 although some lines could not be answered");
  table.section("Batch", {Subcommand::kBatch});
  table.add("error-file", text(&C::error_file), "FILE", "puts lines without a 200 answer here instead");
  table.add("output-order", choice(&C::output_order, {"input", "completion"}), "ORDER", "input or completion");
  table.add("served-model-name", text(&C::served_model_name), "NAME", "refuse requests whose model is not this one");
  table.add("retry-errors", toggle(&C::retry_errors), "", "with --resume: run lines again that were refused");
}

void add_generate_options(OptionTable& table) {
  using C = RunConfig;
  table.section("Prompt", {Subcommand::kGenerate});
  table.add("prompt", text(&C::prompt), "TEXT", "text to continue", "p");
  table.add("prompt-ids", integers(&C::prompt_ids, 0, kMaxInt32), "IDS", "token ids to continue: 1,2,3");
  table.add("chat", toggle(&C::chat), "", "put the prompt into the model's chat template as a user message");
  table.add("system", text(&C::system), "TEXT", "with --chat: the system message");
  table.section("Sampling", {Subcommand::kGenerate});
  table.add("max-tokens", integer(&C::max_tokens, 1, kMaxInt32), "N", "tokens to generate at most");
  table.add("temperature", real(&C::temperature, 0.0, 100.0), "X", "0: greedy (default: the model's, else 1)");
  table.add("top-k", integer(&C::top_k, -1, kMaxInt32), "N", "draw from the N likeliest (0 or -1: all)");
  table.add("top-p", real(&C::top_p, 0.0, 1.0), "X", "draw from the likeliest whose probabilities reach X");
  table.add("min-p", real(&C::min_p, 0.0, 1.0), "X", "drop tokens less likely than X times the likeliest");
  table.add("repetition-penalty", real(&C::repetition_penalty, 1e-6, 100.0), "X", "over prompt and answer; 1: none");
  table.add("presence-penalty", real(&C::presence_penalty, -2.0, 2.0), "X", "taken once from each token of the answer");
  table.add("frequency-penalty", real(&C::frequency_penalty, -2.0, 2.0), "X", "taken for each time a token occurs in the answer");
  table.add("stop", texts(&C::stop), "TEXT", "end before this text; may be given several times");
  table.add("n", integer(&C::n, 1, 1024), "N", "answers to generate");
  table.add("logprobs", integer(&C::logprobs, -1, 1 << 20), "N", "log probabilities of the token and of the N likeliest");
  table.add("ignore-eos", toggle(&C::ignore_eos), "", "go on behind the end-of-sequence token");
  table.section("Output", {Subcommand::kGenerate});
  table.add("output-ids", toggle(&C::output_ids), "", "print token ids instead of text");
  table.add("dump-logits", text(&C::dump_logits), "FILE", "write the logits of every prompt position (safetensors)");
  table.add("dump-hidden", text(&C::dump_hidden), "FILE", "write the hidden states of every layer (safetensors)");
}

void add_other_options(OptionTable& table) {
  using C = RunConfig;
  table.section("Inspect", {Subcommand::kInspect});
  table.add("graph", toggle(&C::print_graph), "", "print the graph that a rank runs");
  table.add("rank", integer(&C::rank, 0, 4095), "N", "with --graph: whose");
  table.section("Quantize", {Subcommand::kQuantize});
  table.add("type", choice(&C::type, {"F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"}), "TYPE",
            "of the matrices (Q4_0, Q4_K: the head at Q8_0, Q6_K); vectors stay F32");
  table.section("Bench", {Subcommand::kBench});
  table.add("input-len", integer(&C::input_len, 1, kMaxInt32), "N", "prompt tokens of a request");
  table.add("output-len", integer(&C::output_len, 1, kMaxInt32), "N", "generated tokens of a request");
  table.add("num-prompts", integer(&C::num_prompts, 1, 1 << 24), "N", "requests of the batch measurement, and of bench throughput");
  table.add("range-ratio", real(&C::range_ratio, 0.0, 1.0), "X",
            "bench throughput: lengths from (1 - X) to (1 + X) times the given ones, drawn with a fixed seed");
  table.add("batch-size", integer(&C::batch_size, 1, 1 << 20), "N", "bench latency: sequences together");
  table.add("warmup", integer(&C::warmup, 0, 1000), "N", "runs that are not counted");
  table.add("iterations", integer(&C::iterations, 1, 1000), "N", "runs that are counted");
  table.section("Output", {Subcommand::kBench, Subcommand::kScore});
  table.add("json", toggle(&C::json), "", "print one JSON object");
  table.section("", {Subcommand::kBench});
  table.add("debug-one-leaf", toggle(&C::debug_one_leaf), "",
            "for measurements, one rank: products without leaves, which gives other answers");
  table.section("Perplexity", {Subcommand::kScore, Subcommand::kQuantize});
  table.add("perplexity", text(&C::perplexity_file), "FILE",
            "score: measure how well the model predicts this text, instead of answering requests; quantize: before and after");
  table.add("window", integer(&C::window, 0, kMaxInt32), "N", "with --perplexity: tokens that are run together (0: the context's length)");
  table.add("stride", integer(&C::stride, 0, kMaxInt32), "N", "with --perplexity: tokens from window to window (0: half the window)");
  table.add("bare-text", toggle(&C::bare_text), "", "put no BOS in front of texts, though the tokenizer's rules do");
  table.section("", {Subcommand::kBatch, Subcommand::kGenerate, Subcommand::kBench, Subcommand::kScore});
  table.add("debug-preempt-every", integer(&C::debug_preempt_every, 0, kMaxInt32), "K", "for tests: preempt a sequence every K steps");
}

template <class Number>
std::optional<Number> number_from(std::string_view text) {
  Number value{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> bytes_from(std::string_view text) {
  constexpr std::string_view kSuffixes = "KMGT";
  if (text.ends_with('B') || text.ends_with('b')) text.remove_suffix(1);
  if (text.ends_with('i')) text.remove_suffix(1);
  std::int64_t unit = 1;
  if (!text.empty()) {
    const std::size_t suffix = kSuffixes.find(static_cast<char>(text.back() & ~0x20));
    if (suffix != std::string_view::npos) {
      unit = std::int64_t{1} << (10 * (suffix + 1));
      text.remove_suffix(1);
    }
  }
  const auto count = number_from<double>(text);
  if (!count || *count < 0 || *count * static_cast<double>(unit) > 9.0e18) return std::nullopt;
  return static_cast<std::int64_t>(*count * static_cast<double>(unit));
}

/// Typing errors between two names: insertions, deletions, replacements, and neighbours swapped.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  if (canonical(a) == canonical(b)) return true;
  return std::filesystem::equivalent(a, b, error);
}

void check_job(const RunConfig& config) {
  if (config.input_file.empty()) throw UsageError("--input-file is missing: the requests, one JSON object a line");
  if (config.output_file.empty()) throw UsageError("--output-file is missing: where the answers go");
  if (config.resume && config.overwrite) throw UsageError("--resume and --overwrite contradict each other");
  if (config.retry_errors && !config.resume) throw UsageError("--retry-errors needs --resume");
  const std::pair<std::string_view, const std::string*> files[] = {
      {"--input-file", &config.input_file}, {"--output-file", &config.output_file}, {"--error-file", &config.error_file}};
  for (std::size_t i = 0; i < std::size(files); ++i) {
    for (std::size_t j = i + 1; j < std::size(files); ++j) {
      if (files[j].second->empty() || !same_file(*files[i].second, *files[j].second)) continue;
      throw UsageError(fmt::format("{} and {} are the same file: {}", files[i].first, files[j].first, *files[j].second));
    }
  }
}

void check_windows(const RunConfig& config) {
  if (config.perplexity_file.empty() && (config.window != 0 || config.stride != 0))
    throw UsageError("--window and --stride need --perplexity");
  if (config.window == 1) throw UsageError("--window 1: a window of one token scores nothing");
  if (config.window != 0 && config.stride > config.window)
    throw UsageError(fmt::format("--stride {} leaves tokens out between windows of {}", config.stride, config.window));
}

void check_score(const RunConfig& config) {
  const bool has_files = !config.input_file.empty() || !config.output_file.empty();
  if (config.perplexity_file.empty() && !has_files) throw UsageError("score: give --perplexity, or --input-file and --output-file");
  if (!config.perplexity_file.empty() && has_files) throw UsageError("--perplexity and --input-file contradict each other: one at a time");
  check_windows(config);
  if (has_files) return check_job(config);
  if (config.resume || config.restarts > 0) throw UsageError("--resume and --restarts are for --input-file, not for --perplexity");
}

void check_generate(const RunConfig& config) {
  if (config.prompt && !config.prompt_ids.empty()) throw UsageError("--prompt and --prompt-ids contradict each other");
  if (!config.prompt && config.prompt_ids.empty()) throw UsageError("--prompt or --prompt-ids is missing: what to continue");
  if (config.chat && !config.prompt) throw UsageError("--chat needs --prompt: token ids are taken as they are");
  if (!config.system.empty() && !config.chat) throw UsageError("--system needs --chat");
}

}  // namespace

std::string Option::key() const {
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::vector<Option> all_options() {
  OptionTable table;
  add_common_options(table);
  add_batch_options(table);
  add_generate_options(table);
  add_other_options(table);
  return std::move(table.options);
}

std::string_view subcommand_name(Subcommand subcommand) {
  constexpr std::string_view kNames[] = {"batch", "generate", "inspect", "bench", "quantize", "score"};
  return kNames[static_cast<std::size_t>(subcommand)];
}

std::string_view kind_name(OptionKind kind) {
  constexpr std::string_view kNames[] = {
      "a text",          "a whole number",         "a number", "true or false", "a number of bytes, like 512M or 2G",
      "a list of texts", "a list of whole numbers"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<Scalar> values_from_text(OptionKind kind, const std::string& text) {
  const auto refuse = [&]() -> UsageError { return UsageError(fmt::format("'{}' is not {}", text, kind_name(kind))); };
  switch (kind) {
    case OptionKind::kText:
    case OptionKind::kTexts: return {text};
    case OptionKind::kInteger:
      if (const auto value = number_from<std::int64_t>(text)) return {*value};
      throw refuse();
    case OptionKind::kReal:
      if (const auto value = number_from<double>(text)) return {*value};
      throw refuse();
    case OptionKind::kSwitch:
      if (text == "true" || text == "false") return {text == "true"};
      throw refuse();
    case OptionKind::kBytes:
      if (const auto value = bytes_from(text)) return {*value};
      throw refuse();
    case OptionKind::kIntegers: break;
  }
  std::vector<Scalar> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto value = number_from<std::int64_t>(std::string_view(text).substr(begin, end - begin));
    if (!value) throw refuse();
    values.emplace_back(*value);
    begin = end + 1;
  }
  return values;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  constexpr std::size_t kLongestName = 64;  // a longer one is no typing error, and the table of costs grows with it
  std::string best;
  if (name.size() > kLongestName) return best;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

void check_consistency(const RunConfig& config) {
  if (config.subcommand == Subcommand::kQuantize && (config.model.empty() || config.quantize_output.empty()))
    throw UsageError("lockstep quantize IN OUT: a GGUF file or a Hugging Face folder, and the GGUF file that is to be written");
  if (config.model.empty() && config.bench != BenchKind::kComm)
    throw UsageError("--model is missing: a GGUF file or a Hugging Face folder");
  if (config.device == "cpu" && config.reduction == "fast")
    throw UsageError("--reduction fast needs GPUs: on the CPU the canonical one is fast");
  if (config.block_size % 16 != 0) throw UsageError(fmt::format("--block-size {}: it must be a multiple of 16", config.block_size));
  if (config.comm == "self" && config.tensor_parallel_size > 1) {
    throw UsageError(fmt::format("--comm self is for one rank, but --tensor-parallel-size is {}", config.tensor_parallel_size));
  }
  if (config.subcommand == Subcommand::kBatch) check_job(config);
  if (config.subcommand == Subcommand::kGenerate) check_generate(config);
  if (config.subcommand == Subcommand::kScore) check_score(config);
  if (config.subcommand == Subcommand::kQuantize) check_windows(config);
  if (config.bench == BenchKind::kComm && config.tensor_parallel_size_given && config.tensor_parallel_size == 1)
    throw UsageError("bench comm needs two ranks or more: --tensor-parallel-size");
  if (config.subcommand == Subcommand::kInspect && config.rank >= config.tensor_parallel_size) {
    throw UsageError(fmt::format("--rank {}: ranks are 0 to {}", config.rank, config.tensor_parallel_size - 1));
  }
}

}  // namespace lockstep::launcher
