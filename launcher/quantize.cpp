#include "launcher/quantize.h"

#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/self.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/processors.h"
#include "engine/session.h"
#include "launcher/perplexity.h"
#include "launcher/session_options.h"

namespace lockstep::launcher {
namespace {

struct Totals {
  std::size_t tensors = 0;
  std::size_t kept = 0;  // of another type than was asked for, vectors left out
  std::uint64_t bytes = 0;
  double worst = 0.0;  // relative error
  std::string worst_name;
};

double relative(const engine::QuantisedTensor& tensor) { return tensor.rms > 0.0 ? tensor.rms_error / tensor.rms : 0.0; }

std::string line(const engine::QuantisedTensor& tensor) {
  return fmt::format("{:<36} {:>12} {:<6} {:>16}  {:>10.3e}  {:>8.4f}  {:>10.3e}{}\n", tensor.name, tensor.from,
                     device::info(tensor.to).name, fmt::format("{}", fmt::join(tensor.shape, " x ")), tensor.rms_error,
                     100.0 * relative(tensor), tensor.max_error, tensor.reason.empty() ? "" : "  " + tensor.reason);
}

std::size_t num_threads(const RunConfig& config) {
  return config.threads > 0 ? static_cast<std::size_t>(config.threads) : device::usable_processors();
}

/// What --perplexity asks for, before and after: the same tokens in the same windows.
class Comparison {
 public:
  explicit Comparison(const RunConfig& config) : config_(config), text_(read_perplexity_text(config)) {}

  void measure_before() { before_ = measure(config_.model, 0); }
  void measure_after() { after_ = measure(config_.quantize_output, before_.window); }
  std::string line() const {
    const double before = before_.perplexity(), after = after_.perplexity();
    return fmt::format("perplexity {:.6f} before, {:.6f} after: {:+.4f} % ({})\n", before, after, 100.0 * (after / before - 1.0),
                       describe_windows(before_));
  }

 private:
  engine::Perplexity measure(const std::string& model, std::size_t max_model_len) {
    const auto device = device::make_cpu_device({.num_threads = num_threads(config_), .isa = instruction_set(config_)});
    const auto communicator = comm::make_self_communicator();
    engine::SessionOptions options = session_options(config_, 1, false);
    options.model = model;
    if (max_model_len != 0) options.max_model_len = max_model_len;
    engine::Session session(options, *device, *communicator);
    std::vector<engine::TokenId> tokens = perplexity_tokens(config_, session.tokenizer(), text_);
    if (!tokens_.empty() && tokens != tokens_)
      throw std::runtime_error(
          fmt::format("{}: its vocabulary makes other tokens of {} than that of {}", model, config_.perplexity_file, config_.model));
    tokens_ = std::move(tokens);
    const engine::Perplexity result = engine::measure_perplexity(session.engine(), tokens_, perplexity_options(config_, session.engine()));
    session.stop();
    return result;
  }

  const RunConfig& config_;
  std::string text_;
  std::vector<engine::TokenId> tokens_;
  engine::Perplexity before_, after_;
};

}  // namespace

void quantize(const RunConfig& config, void (*print)(std::string_view)) {
  engine::QuantiseOptions options;
  options.model = config.model;
  options.output = config.quantize_output;
  options.type = *device::dtype_from_name(config.type);
  options.threads = num_threads(config);
  options.overwrite = config.overwrite;
  std::optional<Comparison> comparison;
  if (!config.perplexity_file.empty()) {
    comparison.emplace(config);
    engine::check_quantisation(options);  // what can not be done shows before the time is spent
    comparison->measure_before();
  }
  Totals totals;
  engine::quantise_model(options, [&](const engine::QuantisedTensor& tensor) {
    if (totals.tensors == 0) {
      print(fmt::format("{:<36} {:>12} {:<6} {:>16}  {:>10}  {:>8}  {:>10}  {}\n", "tensor", "from", "to", "shape", "rms error", "% of rms",
                        "max error", "why it is not as asked for"));
    }
    ++totals.tensors;
    totals.bytes += tensor.bytes;
    if (tensor.shape.size() > 1 && !tensor.reason.empty()) ++totals.kept;
    if (relative(tensor) > totals.worst) {
      totals.worst = relative(tensor);
      totals.worst_name = tensor.name;
    }
    print(line(tensor));
  });
  std::string summary =
      fmt::format("{}: {} tensors, {:.1f} MiB", config.quantize_output, totals.tensors, static_cast<double>(totals.bytes) / 1048576.0);
  if (totals.kept > 0) summary += fmt::format(", {} {} of another type", totals.kept, totals.kept == 1 ? "matrix" : "matrices");
  if (totals.worst > 0.0) summary += fmt::format("; largest relative error {:.4f} % ({})", 100.0 * totals.worst, totals.worst_name);
  print(summary + "\n");
  if (!comparison) return;
  comparison->measure_after();
  print(comparison->line());
}

}  // namespace lockstep::launcher
