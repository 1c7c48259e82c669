#pragma once

#include "device/cuda/kernels/top.cuh"

/// Selection from rows of logits (docs/numerics.md, N6): what device/cpu/selection.cpp does, with the same bits. A block works on one row.
namespace lockstep::device::cuda {

constexpr unsigned kChangeThreads = 512;
constexpr unsigned kSumThreads = 256;  // segments at a time
constexpr unsigned kMaxParts = 256;    // of a run of segments, kSumThreads each
constexpr unsigned kCandidateThreads = 512;
constexpr unsigned kIdsOfSegment = 16;

/// One row of a selection, with the places of its results: device::SelectionRow and SelectionLayout::Row.
struct SelectionTask {
  double scale;
  std::uint32_t row;
  std::uint32_t first_change;
  std::uint32_t num_changes;
  std::uint32_t has_own_log_sum;
  std::uint32_t sums;
  std::uint32_t log_sums;
  std::uint32_t candidates;
  std::uint32_t num_candidates;
  std::uint32_t best;
  std::uint32_t num_best;
};

/// Everything in device memory that the kernels share.
struct SelectionView {
  float* logits;
  std::size_t stride;
  const SelectionTask* tasks;  // [rows]
  const LogitChange* changes;  // of all rows
  float* saved;                // [changes]: the logits as they were
  const SegmentRun* runs;      // [runs of the rank]
  double* sums;                // as the layout says
  Candidate* candidates;       // likewise
  std::uint32_t* flags;        // [rows]
  std::uint32_t columns;
  std::uint32_t num_rows;
  std::uint32_t num_ranks;
  std::uint32_t aligned;  // 0 or 1
};

__device__ inline float changed_logit(float logit, const LogitChange& change) {
  const float mask = __uint_as_float(0xFF800000u);  // -infinity
  if (change.bias == mask) return mask;
  const float biased = logit + change.bias;
  const float repeated = biased > 0.0f ? biased / change.repetition : biased * change.repetition;
  return repeated - change.subtracted;
}

/// Changes the logits, and writes the peaks at this rank's place, +0 at all others. Bytes: 4 n of a row that is changed.
template <class Float>
__global__ void __launch_bounds__(kChangeThreads) change_rows(SelectionView view, ConstRows<Top> tops, unsigned rank, Float* peaks) {
  LOCKSTEP_SHARED(float[kChangeThreads / 32], values);
  const SelectionTask task = view.tasks[blockIdx.x];
  float* row = view.logits + task.row * view.stride;
  bool usable = true;
  for (unsigned i = threadIdx.x; i < task.num_changes; i += kChangeThreads) {
    const LogitChange change = view.changes[task.first_change + i];
    const float logit = row[change.id];
    const float after = changed_logit(logit, change);
    view.saved[task.first_change + i] = logit;
    row[change.id] = after;
    if (after * 0.0f != 0.0f && change.bias != __uint_as_float(0xFF800000u)) usable = false;
  }
  usable = __syncthreads_and(usable ? 1 : 0) != 0;  // and the changes are there
  const float lowest = __uint_as_float(0xFF800000u);
  const float maximum = view.columns != 0 ? tops.row(task.row)->logit : lowest;
  float changed = task.num_changes == 0 ? maximum : lowest;
  if (task.num_changes != 0) {
    for (unsigned at = 4 * threadIdx.x; at < view.columns; at += 4 * kChangeThreads) {
      float v[4];
      load_four(row, at, view.columns, view.aligned != 0, v);
      for (unsigned i = 0; i < 4; ++i) {
        if (at + i < view.columns && v[i] > changed) changed = v[i];
      }
    }
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, changed, apart);
      changed = other > changed ? other : changed;
    }
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = changed;
    __syncthreads();
    for (unsigned warp = 0; warp < kChangeThreads / 32; ++warp) changed = values[warp] > changed ? values[warp] : changed;
  }
  if (threadIdx.x == 0) view.flags[blockIdx.x] = usable ? 1 : 0;
  for (unsigned place = threadIdx.x; place < view.num_ranks; place += kChangeThreads) {
    Float* to = peaks + kPeakSize * (place * view.num_rows + blockIdx.x);
    to[0] = place == rank ? changed : 0.0f;
    to[1] = place == rank ? maximum : 0.0f;
    to[2] = 0.0f;  // no mass is known
  }
}

/// exp((value - maximum) * scale), 0 below exp(-708): the polynomial of device/cpu/vocabulary_sum.cpp.
__device__ inline double exponential_weight(float value, double maximum, double scale) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number, which then stands in the lowest bits
  const double exponent = (static_cast<double>(value) - maximum) * scale;
  const double x = exponent < -708.0 ? -708.0 : exponent;
  const double shifted = fma(x, 0x1.71547652b82fep+0, kShift);
  const double k = shifted - kShift;
  double r = fma(k, -0x1.62e42fefa39efp-1, x);
  r = fma(k, -0x1.abc9e3b39803fp-56, r);
  double sum = 1.0 / 6227020800.0;
  sum = fma(sum, r, 1.0 / 479001600.0);
  sum = fma(sum, r, 1.0 / 39916800.0);
  sum = fma(sum, r, 1.0 / 3628800.0);
  sum = fma(sum, r, 1.0 / 362880.0);
  sum = fma(sum, r, 1.0 / 40320.0);
  sum = fma(sum, r, 1.0 / 5040.0);
  sum = fma(sum, r, 1.0 / 720.0);
  sum = fma(sum, r, 1.0 / 120.0);
  sum = fma(sum, r, 1.0 / 24.0);
  sum = fma(sum, r, 1.0 / 6.0);
  sum = fma(sum, r, 0.5);
  sum = fma(sum, r, 1.0);
  sum = fma(sum, r, 1.0);
  const auto power = static_cast<unsigned long long>(__double_as_longlong(shifted) + 1023) << 52;
  return exponent < -708.0 ? 0.0 : sum * __longlong_as_double(static_cast<long long>(power));
}

/// The sum of one segment, neighbours first. Ids behind the end of the row add 0.
__device__ inline double segment_weight(const float* row, unsigned first, unsigned columns, bool aligned, double maximum, double scale) {
  double quarters[4];
#pragma unroll
  for (unsigned quarter = 0; quarter < 4; ++quarter) {
    const unsigned at = first + 4 * quarter;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < columns) load_four(row, at, columns, aligned, v);
    double weights[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) weights[i] = at + i < columns ? exponential_weight(v[i], maximum, scale) : 0.0;
    quarters[quarter] = (weights[0] + weights[1]) + (weights[2] + weights[3]);
  }
  return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

/// A block (run of segments, row, sum): the tree node of the run. Sum 0 is that of the row with its scale, 1 that of the row as it is.
/// Zeros that fill a part up change nothing, as no sum is negative. Bytes: 4 n a row and sum. Operations: 21 n in fp64.
template <class Float>
__global__ void __launch_bounds__(kSumThreads) sum_exponentials(SelectionView view, const Float* peaks, unsigned first_sum) {
  LOCKSTEP_SHARED(double[kSumThreads / 32], warps);
  LOCKSTEP_SHARED(double[kMaxParts], parts);
  const SelectionTask task = view.tasks[blockIdx.y];
  const unsigned which = first_sum + blockIdx.z;
  if (which == 0 ? task.scale == 0.0 : task.has_own_log_sum == 0) return;
  const double scale = which == 0 ? task.scale : 1.0;
  Float highest = peaks[kPeakSize * blockIdx.y + which];
  for (unsigned rank = 1; rank < view.num_ranks; ++rank) {
    const Float other = peaks[kPeakSize * (rank * view.num_rows + blockIdx.y) + which];
    highest = other > highest ? other : highest;
  }
  const double maximum = highest;
  const float* row = view.logits + task.row * view.stride;
  const SegmentRun run = view.runs[blockIdx.x];
  const unsigned begin = run.begin - view.runs[0].begin;
  const unsigned num_parts = (run.size + kSumThreads - 1) / kSumThreads;
  for (unsigned part = 0; part < num_parts; ++part) {
    const unsigned segment = part * kSumThreads + threadIdx.x;
    double sum = 0.0;
    if (segment < run.size) sum = segment_weight(row, (begin + segment) * kIdsOfSegment, view.columns, view.aligned != 0, maximum, scale);
    for (int apart = 1; apart < 32; apart *= 2) sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) parts[part] = ((warps[0] + warps[1]) + (warps[2] + warps[3])) + ((warps[4] + warps[5]) + (warps[6] + warps[7]));
    __syncthreads();
  }
  for (unsigned count = num_parts / 2; count > 0; count /= 2) {
    const double sum = threadIdx.x < count ? parts[2 * threadIdx.x] + parts[2 * threadIdx.x + 1] : 0.0;
    __syncthreads();
    if (threadIdx.x < count) parts[threadIdx.x] = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) view.sums[(which == 0 ? task.sums : task.log_sums) + blockIdx.x] = parts[0];
}

/// The order of candidates: a smaller number is a larger logit; 0 and -0 are one.
__device__ inline unsigned order_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}

/// A block (row, list): the first `count` of the order, and of equal logits those with the lowest ids. The order of the last one is found
/// eight bits at a time from counts, so nothing is sorted; then each warp takes its part of the row, ids ascending. List 0 is that of the
/// candidates, 1 that of the best. Bytes: 24 n a row and list, most from the cache.
template <class Float>
__global__ void __launch_bounds__(kCandidateThreads) find_candidates(SelectionView view, unsigned first_list, Float) {
  constexpr unsigned kWarps = kCandidateThreads / 32;
  LOCKSTEP_SHARED(unsigned[256], counts);
  LOCKSTEP_SHARED(unsigned[2], found);  // the digit, and how many come before it
  LOCKSTEP_SHARED(unsigned[kWarps], befores);
  LOCKSTEP_SHARED(unsigned[kWarps], equals);
  const SelectionTask task = view.tasks[blockIdx.x];
  const bool best = first_list + blockIdx.y != 0;
  const unsigned count = best ? task.num_best : task.num_candidates;
  if (count == 0) return;
  const float* row = view.logits + task.row * view.stride;
  Candidate* to = view.candidates + (best ? task.best : task.candidates);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  unsigned last = 0, missing = count;  // the order of the last one, its higher digits first, and how many of that beginning are taken
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (unsigned i = threadIdx.x; i < 256; i += kCandidateThreads) counts[i] = 0;
    __syncthreads();
    const unsigned higher = shift == 24 ? 0u : 0xFFFFFFFFu << (shift + 8);
    for (unsigned at = 4 * threadIdx.x; at < view.columns; at += 4 * kCandidateThreads) {
      float v[4];
      load_four(row, at, view.columns, view.aligned != 0, v);
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned order = order_of(v[i]);
        if (at + i < view.columns && (order & higher) == last) atomicAdd(&counts[order >> shift & 255], 1u);
      }
    }
    __syncthreads();
    if (warp == 0) {  // lane i looks at digits 8 i .. 8 i + 7
      unsigned sum = 0;
      for (unsigned i = 0; i < 8; ++i) sum += counts[8 * lane + i];
      unsigned before = sum;
      for (int apart = 1; apart < 32; apart *= 2) {
        const unsigned other = __shfl_up_sync(0xFFFFFFFFu, before, static_cast<unsigned>(apart));
        if (lane >= static_cast<unsigned>(apart)) before += other;
      }
      before -= sum;
      if (before < missing && missing <= before + sum) {
        for (unsigned i = 0; i < 8; ++i) {
          const unsigned here = counts[8 * lane + i];
          if (before < missing && missing <= before + here) {
            found[0] = 8 * lane + i;
            found[1] = before;
          }
          before += here;
        }
      }
    }
    __syncthreads();
    last |= found[0] << shift;
    missing -= found[1];
    __syncthreads();
  }

  // missing: how many that are equal to the last one are taken; all that come before it are.
  const unsigned part = (view.columns + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const unsigned begin = min(warp * part, view.columns), end = min(begin + part, view.columns);
  unsigned num_before = 0, num_equal = 0;
  for (unsigned first = begin; first < end; first += 32) {
    const unsigned order = first + lane < end ? order_of(row[first + lane]) : 0xFFFFFFFFu;
    const bool inside = first + lane < end;
    num_before += static_cast<unsigned>(__popc(__ballot_sync(0xFFFFFFFFu, inside && order < last)));
    num_equal += static_cast<unsigned>(__popc(__ballot_sync(0xFFFFFFFFu, inside && order == last)));
  }
  if (lane == 0) {
    befores[warp] = num_before;
    equals[warp] = num_equal;
  }
  __syncthreads();
  unsigned before = 0, equal = 0;
  for (unsigned i = 0; i < warp; ++i) {
    before += befores[i];
    equal += equals[i];
  }
  const unsigned lower = (1u << lane) - 1;
  for (unsigned first = begin; first < end; first += 32) {
    const bool inside = first + lane < end;
    const float logit = inside ? row[first + lane] : 0.0f;
    const unsigned order = order_of(logit);
    const unsigned those_before = __ballot_sync(0xFFFFFFFFu, inside && order < last);
    const unsigned those_equal = __ballot_sync(0xFFFFFFFFu, inside && order == last);
    const unsigned place_before = before + static_cast<unsigned>(__popc(those_before & lower));
    const unsigned place_equal = equal + static_cast<unsigned>(__popc(those_equal & lower));
    const bool takes_equal = order == last && place_equal < missing;
    if (inside && (order < last || takes_equal)) {
      Candidate& place = to[takes_equal ? count - missing + place_equal : place_before];
      place.logit = logit;
      place.id = first + lane;
    }
    before += static_cast<unsigned>(__popc(those_before));
    equal += static_cast<unsigned>(__popc(those_equal));
  }
}

/// Puts the logits back as they were, in the row and in its candidates.
template <class Float>
__global__ void __launch_bounds__(kChangeThreads) restore_rows(SelectionView view, Float) {
  const SelectionTask task = view.tasks[blockIdx.x];
  float* row = view.logits + task.row * view.stride;
  for (unsigned i = threadIdx.x; i < task.num_changes; i += kChangeThreads)
    row[view.changes[task.first_change + i].id] = view.saved[task.first_change + i];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < task.num_candidates; i += kChangeThreads) {
    Candidate* candidate = view.candidates + task.candidates + i;
    candidate->logit = row[candidate->id];
  }
}

}  // namespace lockstep::device::cuda
