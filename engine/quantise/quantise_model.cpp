#include "engine/quantise/quantise_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <fcntl.h>

#include "engine/io/file_descriptor.h"
#include "engine/model/gguf_config.h"
#include "engine/model/open_model.h"
#include "engine/quantise/block_quantisers.h"
#include "engine/quantise/gguf_writer.h"
#include "engine/quantise/hf_metadata.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using device::DType;

constexpr std::size_t kChunkElements = std::size_t{1} << 18;

/// general.file_type, as llama.cpp numbers what most matrices of a file are.
std::uint32_t file_type(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ8_0: return 7;
    case DType::kQ4_K: return 15;
    case DType::kQ6_K: return 18;
    case DType::kBF16: return 32;
    default: throw std::invalid_argument("quantise: " + std::string(device::info(type).name) + " is no type for the matrices of a file");
  }
}

/// Everything about the new file but its bytes.
struct Plan {
  OpenedModel model;
  GgufMetadataBuilder metadata;
  std::vector<SourceTensor> tensors;
  std::vector<QuantisedTensor> results;  // [tensors], errors still to come
};

double bits_of(DType dtype) {
  const device::DTypeInfo& type = device::info(dtype);
  return 8.0 * static_cast<double>(type.block_bytes) / static_cast<double>(type.block_size);
}

/// What all rows of a tensor are stored as; nothing if that differs, or if they are made of packed numbers that are not those of a block
/// type.
std::optional<DType> stored_type(const SourceTensor& source) {
  if (source.runs.empty()) return DType::kF32;
  const DType first = source.runs.front().stored->dtype;
  const bool alike = std::all_of(source.runs.begin(), source.runs.end(), [&](const RowRun& run) {
    const bool as_they_are = !run.stored->packed || device::info(first).block_quantised();
    return run.stored->dtype == first && as_they_are;
  });
  return alike ? std::optional(first) : std::nullopt;
}

/// Which type a tensor gets, and why it is not `wanted`.
void choose_type(const SourceTensor& source, DType wanted, bool is_head, QuantisedTensor& result) {
  const auto choose = [&](DType dtype, std::string reason) {
    result.to = dtype;
    result.reason = std::move(reason);
  };
  const auto ends_with = [&](std::string_view end) { return source.name.ends_with(end); };
  if (wanted == DType::kF32) return choose(DType::kF32, "");
  if (source.shape.size() < 2) return choose(DType::kF32, "a vector");
  if (ends_with(".bias")) return choose(DType::kF32, "biases");
  if (ends_with("_norm.weight")) return choose(DType::kF32, "weights of norms");
  if (ends_with("ffn_gate_inp.weight")) return choose(DType::kF32, "chooses experts");
  if (ends_with("position_embd.weight")) return choose(DType::kF32, "positions");
  if (wanted == DType::kF16 || wanted == DType::kBF16) return choose(wanted, "");
  DType type = wanted;
  std::string reason;
  if (is_head && (wanted == DType::kQ4_0 || wanted == DType::kQ4_K)) {
    type = wanted == DType::kQ4_0 ? DType::kQ8_0 : DType::kQ6_K;
    reason = "the head: its error goes straight into the logits";
  }
  const auto stored = stored_type(source);
  if (stored && device::info(*stored).block_quantised() && bits_of(*stored) <= bits_of(type))
    return choose(*stored, *stored == wanted ? "" : "is that already: quantising again would only add error");
  const auto is_whole_blocks = [&](DType dtype) { return source.columns() % device::info(dtype).block_size == 0; };
  if (!is_whole_blocks(type)) {
    reason = "rows of " + std::to_string(source.columns()) + " are no whole blocks of " + std::to_string(device::info(type).block_size);
    type = is_whole_blocks(DType::kQ8_0) ? DType::kQ8_0 : DType::kF16;
  }
  choose(type, reason);
}

/// Divisors of rotary frequencies say what model it is, as metadata do: they are there as soon as the header is.
SourceTensor copy_of(const StoredTensor& tensor, const WeightSource& weights) {
  if (!tensor.name.starts_with("rope_f") || tensor.dtype != DType::kF32)
    return {.name = tensor.name, .shape = tensor.shape, .runs = {{&tensor, 0, tensor.rows(), 0}}};
  std::vector<float> values(tensor.rows() * tensor.columns());
  weights.read(tensor, 0, std::as_writable_bytes(std::span(values)));
  return {.name = tensor.name, .shape = tensor.shape, .values = std::move(values)};
}

Plan make_plan(const QuantiseOptions& options) {
  Plan plan;
  plan.model = open_model(options.model);
  if (plan.model.spec.naming == NamingScheme::kGguf) {
    GgufFile file = read_gguf(fs::path(plan.model.spec.source));
    plan.metadata = GgufMetadataBuilder(file.metadata.values());
    plan.metadata.erase_prefix("split.");
    const WeightSource& weights = *plan.model.weights;
    if (!weights.unsupported().empty()) weights.find(weights.unsupported().front().name);  // says what is wrong with it
    for (const StoredTensor& tensor : weights.tensors()) plan.tensors.push_back(copy_of(tensor, weights));
  } else {
    FolderAsGguf folder = folder_as_gguf(plan.model);
    plan.metadata = std::move(folder.metadata);
    plan.tensors = std::move(folder.tensors);
  }
  plan.metadata.set_uint32("general.file_type", file_type(options.type));
  plan.metadata.set_uint32("general.quantization_version", 2);
  const bool has_head =
      std::any_of(plan.tensors.begin(), plan.tensors.end(), [](const SourceTensor& tensor) { return tensor.name == "output.weight"; });
  for (const SourceTensor& tensor : plan.tensors) {
    QuantisedTensor result{.name = tensor.name, .from = std::string(device::info(DType::kF32).name), .shape = tensor.shape};
    if (!tensor.runs.empty()) {
      const StoredTensor& stored = *tensor.runs.front().stored;
      result.from = stored.format.empty() ? device::info(stored.dtype).name : stored.format;
    }
    choose_type(tensor, options.type, tensor.name == (has_head ? "output.weight" : "token_embd.weight"), result);
    result.bytes = tensor.rows() * device::row_bytes(result.to, tensor.columns());
    plan.results.push_back(std::move(result));
  }
  return plan;
}

/// Some rows of a tensor: what a thread does at a time.
struct Piece {
  std::size_t tensor = 0;
  std::size_t first_row = 0;
  std::size_t num_rows = 0;
  // What came of it.
  double squares = 0.0;  // of the values
  double error_squares = 0.0;
  double max_error = 0.0;
};

std::vector<Piece> cut(const std::vector<SourceTensor>& tensors) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t rows = tensors[i].rows();
    const std::size_t step = tensors[i].of_elements ? rows : std::max<std::size_t>(1, kChunkElements / tensors[i].columns());
    for (std::size_t first = 0; first < rows; first += step) pieces.push_back({i, first, std::min(step, rows - first)});
  }
  return pieces;
}

class Quantiser {
 public:
  Quantiser(Plan plan, const std::function<void(const QuantisedTensor&)>& report) : plan_(std::move(plan)), report_(report) {
    std::vector<GgufTensorEntry> entries;
    for (const QuantisedTensor& result : plan_.results) entries.push_back({result.name, result.to, result.shape});
    layout_ = layout_gguf(plan_.metadata, entries);
    pieces_ = cut(plan_.tensors);
    left_.resize(plan_.tensors.size());
    for (const Piece& piece : pieces_) ++left_[piece.tensor];
  }

  /// Everything but the tensors that are stored somewhere: enough to know what model the file will be.
  void write_header(const FileDescriptor& file) const {
    file.truncate(0);
    file.truncate(layout_.file_size);
    file.write_at(0, layout_.header);
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      const std::vector<float>& values = plan_.tensors[i].values;
      if (!values.empty()) file.write_at(layout_.offsets[i], {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
  }

  void write_tensors(const FileDescriptor& file, std::size_t threads) {
    const auto work = [&] {
      try {
        for (std::size_t at = next_++; at < pieces_.size() && !failed_; at = next_++) {
          convert(pieces_[at], file);
          finish(pieces_[at].tensor);
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        failed_ = true;
      }
    };
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < std::min(threads, pieces_.size()); ++i) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void convert(Piece& piece, const FileDescriptor& file) const {
    const SourceTensor& source = plan_.tensors[piece.tensor];
    if (source.runs.empty()) return;
    const DType to = plan_.results[piece.tensor].to;
    const std::size_t row_bytes = device::row_bytes(to, source.columns());
    std::vector<std::byte> written(piece.num_rows * row_bytes);
    for (const SourceRows& rows : read_rows(*plan_.model.weights, source, piece.first_row, piece.num_rows)) {
      const std::span<std::byte> place = std::span(written).subspan((rows.row - piece.first_row) * row_bytes, rows.count * row_bytes);
      const StoredTensor& stored = *rows.stored;
      if (rows.dtype == to && source.offset == 0.0f) {
        std::copy(rows.bytes.begin(), rows.bytes.end(), place.begin());
        continue;
      }
      std::vector<float> values(rows.count * source.columns());
      device::dequantise(rows.dtype, rows.bytes, values);
      if (source.offset != 0.0f) {
        for (float& value : values) value += source.offset;
      }
      try {
        quantise(to, values, place);
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(plan_.model.weights->files().at(stored.file).path().string() + ": tensor " + quote(stored.name) + ": " +
                                 error.what());
      }
      measure(values, to, place, piece);
    }
    file.write_at(layout_.offsets[piece.tensor] + piece.first_row * row_bytes,
                  {reinterpret_cast<const char*>(written.data()), written.size()});
  }

  static void measure(std::span<const float> values, DType dtype, std::span<const std::byte> written, Piece& piece) {
    std::vector<float> decoded(values.size());
    device::dequantise(dtype, written, decoded);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(decoded[i]) - values[i];
      piece.squares += static_cast<double>(values[i]) * values[i];
      piece.error_squares += error * error;
      piece.max_error = std::max(piece.max_error, std::fabs(error));
    }
  }

  /// Reports what is complete, in the order of the file. Sums are taken piece by piece in order, so they do not depend on the threads.
  void finish(std::size_t tensor) {
    const std::lock_guard lock(mutex_);
    --left_[tensor];
    for (; reported_ < left_.size() && left_[reported_] == 0; ++reported_) {
      QuantisedTensor& result = plan_.results[reported_];
      double squares = 0.0, error_squares = 0.0;
      for (; first_unreported_ < pieces_.size() && pieces_[first_unreported_].tensor == reported_; ++first_unreported_) {
        const Piece& piece = pieces_[first_unreported_];
        squares += piece.squares;
        error_squares += piece.error_squares;
        result.max_error = std::max(result.max_error, piece.max_error);
      }
      const auto count = static_cast<double>(plan_.tensors[reported_].rows() * plan_.tensors[reported_].columns());
      result.rms = std::sqrt(squares / count);
      result.rms_error = std::sqrt(error_squares / count);
      if (report_) report_(result);
    }
  }

  Plan plan_;
  const std::function<void(const QuantisedTensor&)>& report_;
  GgufLayout layout_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> left_;  // [tensors] pieces to come
  std::size_t reported_ = 0;       // tensors
  std::size_t first_unreported_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

void check_output(const QuantiseOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(options.output, error);
  if (!fs::exists(status)) return;
  const std::string path = options.output.string();
  if (!fs::is_regular_file(status)) throw std::runtime_error(path + ": it is there already, and is no file");
  if (fs::equivalent(options.output, options.model, error)) throw std::runtime_error(path + ": this is the model that is to be read");
  if (!options.overwrite) throw std::runtime_error(path + ": it is there already; --overwrite replaces it");
}

Plan checked_plan(const QuantiseOptions& options) {
  check_output(options);
  Plan plan = make_plan(options);
  for (const InputFile& file : plan.model.weights->files()) {
    std::error_code ignored;
    if (fs::equivalent(file.path(), options.output, ignored))
      throw std::runtime_error(options.output.string() + ": the model is read from it");
  }
  return plan;
}

}  // namespace

void check_quantisation(const QuantiseOptions& options) { checked_plan(options); }

void quantise_model(const QuantiseOptions& options, const std::function<void(const QuantisedTensor&)>& report) {
  Plan plan = checked_plan(options);
  const ModelSpec spec = plan.model.spec;
  FileDescriptor file(with_suffix(options.output, ".partial"), O_RDWR | O_CREAT | O_CLOEXEC);
  if (!file.try_lock()) throw std::runtime_error(file.path().string() + ": another process is writing it");
  try {
    Quantiser quantiser(std::move(plan), report);
    quantiser.write_header(file);
    check_same_model(spec, spec_from_gguf(read_gguf(InputFile(file.path()))));
    quantiser.write_tensors(file, options.threads);
    file.sync();
  } catch (...) {
    std::error_code ignored;
    fs::remove(file.path(), ignored);
    throw;
  }
  file.rename_to(options.output);
  sync_folder_of(options.output);
}

}  // namespace lockstep::engine
