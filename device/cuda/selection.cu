#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "device/cuda/kernels/selection.cuh"
#include "device/cuda/row_launch.h"
#include "device/cuda/selection.h"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kUsualCandidates = 96;  // of a row: for these no step takes memory

/// Memory of at least that size; what it held is lost where it has to grow.
template <class Memory>
void reserve(Memory& memory, std::size_t bytes) {
  if (memory.size_bytes() < bytes) memory = Memory(std::max(bytes, 2 * memory.size_bytes()), "the selection of tokens");
}

}  // namespace

CudaSelection::~CudaSelection() {
  if (copied_ != nullptr) cudaEventDestroy(copied_);
}

void CudaSelection::prepare(std::size_t max_rows, std::span<const SegmentRun> runs) {
  max_rows_ = max_rows;
  num_runs_ = runs.size();
  for (const SegmentRun& run : runs) {
    if (run.size > kMaxParts * kSumThreads) throw std::invalid_argument("the vocabulary of a rank is longer than the GPU can add up");
  }
  reserve(found_, max_rows * (2 * runs.size() * sizeof(double) + kUsualCandidates * sizeof(Candidate) + sizeof(std::uint32_t)));
  reserve(read_found_, found_.size_bytes());
  if (copied_ == nullptr) check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "creating an event");
  runs_ = DeviceMemory(runs.size_bytes(), "the selection of tokens");
  if (!runs.empty()) check(cudaMemcpy(runs_.data(), runs.data(), runs.size_bytes(), cudaMemcpyHostToDevice), "uploading runs of segments");
}

SelectionView CudaSelection::view(Rows logits, std::size_t num_ranks) const {
  SelectionView view;
  view.logits = static_cast<float*>(logits.data);
  view.stride = logits.stride;
  view.tasks = input_.as<SelectionTask>();
  view.changes = reinterpret_cast<const LogitChange*>(input_.as<std::byte>() + changes_offset_);
  view.saved = reinterpret_cast<float*>(input_.as<std::byte>() + saved_offset_);
  view.runs = runs_.as<SegmentRun>();
  view.sums = found_.as<double>();
  view.candidates = reinterpret_cast<Candidate*>(found_.as<std::byte>() + layout_.candidates_offset());
  view.flags = reinterpret_cast<std::uint32_t*>(found_.as<std::byte>() + layout_.flags_offset());
  view.columns = static_cast<std::uint32_t>(logits.columns);
  view.num_rows = static_cast<std::uint32_t>(layout_.rows().size());
  view.num_ranks = static_cast<std::uint32_t>(num_ranks);
  view.aligned = is_aligned(logits) ? 1 : 0;
  return view;
}

void CudaSelection::upload(const Launch& where, const Selection& selection) {
  changes_offset_ = selection.rows.size() * sizeof(SelectionTask);
  saved_offset_ = changes_offset_ + selection.changes.size_bytes();
  check(cudaEventSynchronize(copied_), "waiting for the upload of a selection");
  reserve(input_, saved_offset_ + selection.changes.size() * sizeof(float));
  reserve(input_staging_, saved_offset_);
  auto* tasks = input_staging_.as<SelectionTask>();
  std::uint32_t first_change = 0;
  has_mass_ = has_log_sum_ = has_best_ = false;
  for (std::size_t i = 0; i < selection.rows.size(); ++i) {
    const SelectionRow& row = selection.rows[i];
    const SelectionLayout::Row& place = layout_.rows()[i];
    const bool has_own_log_sum = row.log_sum == LogSum::kOwn;
    tasks[i] = {row.scale,     row.row,        first_change,     row.num_changes,      has_own_log_sum ? 1u : 0u,
                place.sums,    place.log_sums, place.candidates, place.num_candidates, place.best,
                place.num_best};
    first_change += row.num_changes;
    has_mass_ = has_mass_ || row.scale != 0.0;
    has_log_sum_ = has_log_sum_ || has_own_log_sum;
    has_best_ = has_best_ || place.num_best > 0;
  }
  num_changes_ = selection.changes.size();
  if (num_changes_ > 0)
    std::memcpy(input_staging_.as<std::byte>() + changes_offset_, selection.changes.data(), selection.changes.size_bytes());
  check(cudaMemcpyAsync(input_.data(), input_staging_.data(), saved_offset_, cudaMemcpyHostToDevice, where.stream),
        "uploading a selection");
  check(cudaEventRecord(copied_, where.stream), "recording an event");
}

void CudaSelection::begin(const Launch& where, Rows logits, const Top* tops, const Selection& selection, std::size_t rank,
                          std::size_t num_ranks, float* peaks) {
  if (selection.rows.size() > max_rows_) throw std::invalid_argument("begin_selection: more rows than prepare_selection() was told of");
  if (selection.rows.empty()) return;
  layout_.reset(selection.rows, logits.columns, num_runs_);
  reserve(found_, layout_.size_bytes());
  reserve(read_found_, layout_.size_bytes());
  upload(where, selection);
  check(launch(change_rows<float>, dim3(static_cast<unsigned>(selection.rows.size())), dim3(kChangeThreads), 0, where.stream,
               view(logits, num_ranks), ConstRows<Top>{tops, 1}, static_cast<unsigned>(rank), peaks),
        "launching change_rows");
}

void CudaSelection::launch_sums(const Launch& where, const SelectionView& view, const float* peaks, unsigned first, unsigned count) const {
  check(launch(sum_exponentials<float>, dim3(static_cast<unsigned>(num_runs_), view.num_rows, count), dim3(kSumThreads), 0, where.stream,
               view, peaks, first),
        "launching sum_exponentials");
}

void CudaSelection::launch_candidates(const Launch& where, const SelectionView& view, unsigned first, unsigned count) const {
  check(launch(find_candidates<float>, dim3(view.num_rows, count), dim3(kCandidateThreads), 0, where.stream, view, first, 0.0f),
        "launching find_candidates");
}

void CudaSelection::finish(const Launch& where, Rows logits, std::size_t num_ranks, const float* peaks) {
  const SelectionView view = this->view(logits, num_ranks);
  if (view.num_rows == 0 || logits.columns == 0) return;
  const bool has_changes = num_changes_ > 0;
  if (has_mass_) launch_sums(where, view, peaks, 0, !has_changes && has_log_sum_ ? 2 : 1);
  launch_candidates(where, view, 0, !has_changes && has_best_ ? 2 : 1);
  if (has_changes) {
    check(launch(restore_rows<float>, dim3(view.num_rows), dim3(kChangeThreads), 0, where.stream, view, 0.0f), "launching restore_rows");
    if (has_best_) launch_candidates(where, view, 1, 1);
  }
  if (has_log_sum_ && (has_changes || !has_mass_)) launch_sums(where, view, peaks, 1, 1);
  check(cudaMemcpyAsync(read_found_.data(), found_.data(), layout_.size_bytes(), cudaMemcpyDeviceToHost, where.stream),
        "reading a selection");
}

std::span<const std::byte> CudaSelection::found() {
  const std::span all(static_cast<std::byte*>(read_found_.data()), layout_.size_bytes());
  const std::size_t end = layout_.flags_offset() + layout_.rows().size() * sizeof(std::uint32_t);
  std::fill(all.begin() + static_cast<std::ptrdiff_t>(end), all.end(), std::byte{0});
  return all;
}

}  // namespace lockstep::device::cuda
