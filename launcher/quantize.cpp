#include "launcher/quantize.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/cpu/processors.h"

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

}  // namespace

void quantize(const RunConfig& config, void (*print)(std::string_view)) {
  engine::QuantiseOptions options;
  options.model = config.model;
  options.output = config.quantize_output;
  options.type = *device::dtype_from_name(config.type);
  options.threads = config.threads > 0 ? static_cast<std::size_t>(config.threads) : device::usable_processors();
  options.overwrite = config.overwrite;
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
}

}  // namespace lockstep::launcher
