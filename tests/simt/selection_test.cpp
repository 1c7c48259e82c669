#include "device/cuda/selection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "device/cpu/row_sketch.h"
#include "device/cpu/vocabulary_sum.h"
#include "simt/simt.h"
#include "tests/simt/device_rows.h"

namespace lockstep::device::cuda {
namespace {

using reference::random_floats;

constexpr std::size_t kRows = 3;

/// What one rank, alone, finds in its part of the rows.
struct Found {
  std::vector<float> peaks;
  std::vector<double> sums;
  std::vector<std::vector<std::uint64_t>> candidates;  // of each list, in their order
  std::vector<std::uint32_t> flags;
  bool operator==(const Found&) const = default;
};

struct Scene {
  std::vector<float> logits;  // [kRows, columns]
  std::size_t columns = 0;
  std::vector<SelectionRow> rows;
  std::vector<LogitChange> changes;
  std::vector<SegmentRun> runs;
};

Scene scene(std::size_t columns, std::size_t first_segment = 0) {
  Scene scene;
  scene.columns = columns;
  scene.logits = random_floats(kRows * columns, 11, 4.0f);
  for (std::size_t i = columns; i < 2 * columns; ++i) scene.logits[i] = std::round(scene.logits[i]);  // ties, zeros of both signs
  scene.rows = {{.scale = 1.25, .row = 0, .num_candidates = 5, .log_sum = LogSum::kOwn},
                {.scale = 0.5, .row = 1, .num_changes = 3, .num_candidates = 64, .num_best = 4, .log_sum = LogSum::kOwn, .num_masked = 1},
                {.scale = 1.0, .row = 2, .num_candidates = 1, .log_sum = LogSum::kIsMass}};
  const auto last = static_cast<std::uint32_t>(columns - 1);
  scene.changes = {{.id = 0, .bias = LogitChange::kMask},
                   {.id = last / 2, .bias = -1.5f, .repetition = 1.3f, .subtracted = 0.7f},
                   {.id = last, .bias = 9.0f, .repetition = 1.1f}};
  scene.runs = segment_runs(first_segment, first_segment + (columns + kVocabularySegment - 1) / kVocabularySegment);
  return scene;
}

Found unpack(const Scene& scene, std::vector<float> peaks, std::span<const std::byte> bytes) {
  SelectionLayout layout;
  layout.reset(scene.rows, scene.columns, scene.runs.size());
  Found found;
  found.peaks = std::move(peaks);
  found.sums.resize(layout.num_sums());
  std::memcpy(found.sums.data(), bytes.data(), found.sums.size() * sizeof(double));
  std::vector<Candidate> candidates(layout.num_candidates());
  std::memcpy(candidates.data(), bytes.data() + layout.candidates_offset(), candidates.size() * sizeof(Candidate));
  const auto take = [&](std::size_t first, std::size_t count) {
    std::vector<std::uint64_t>& list = found.candidates.emplace_back();
    for (std::size_t i = first; i < first + count; ++i) list.push_back(candidate_key(candidates[i].logit, candidates[i].id));
    std::sort(list.begin(), list.end());
  };
  for (const SelectionLayout::Row& row : layout.rows()) {
    take(row.candidates, row.num_candidates);
    take(row.best, row.num_best);
  }
  found.flags.resize(scene.rows.size());
  std::memcpy(found.flags.data(), bytes.data() + layout.flags_offset(), found.flags.size() * sizeof(std::uint32_t));
  return found;
}

/// What the CPU device knows of the mass only nearly, as it would be exactly.
void make_exact(const Scene& scene, Found& found) {
  SelectionLayout layout;
  layout.reset(scene.rows, scene.columns, scene.runs.size());
  std::span<const LogitChange> changes = scene.changes;
  for (std::size_t index = 0; index < scene.rows.size(); ++index) {
    const SelectionRow& row = scene.rows[index];
    const auto begin = scene.logits.begin() + static_cast<std::ptrdiff_t>(row.row * scene.columns);
    std::vector<float> logits(begin, begin + static_cast<std::ptrdiff_t>(scene.columns));
    for (const LogitChange& change : changes.first(row.num_changes)) logits[change.id] = changed(logits[change.id], change);
    changes = changes.subspan(row.num_changes);
    if ((found.flags[index] & kIsSketched) == 0) continue;
    found.flags[index] &= ~kIsSketched;
    double* sums = found.sums.data() + layout.rows()[index].sums;
    double sketched = 0.0, exact = 0.0;
    for (std::size_t run = 0; run < scene.runs.size(); ++run) {
      const std::size_t first = (scene.runs[run].begin - scene.runs.front().begin) * kVocabularySegment;
      const std::size_t count = std::min<std::size_t>(scene.runs[run].size * kVocabularySegment, scene.columns - first);
      sketched += sums[run];
      sums[run] = sum_of_exponentials(std::span<const float>(logits).subspan(first, count), found.peaks[kPeakSize * index], row.scale,
                                      Isa::kPortable);
      exact += sums[run];
    }
    EXPECT_NEAR(sketched, exact, kMassError * exact);
    float& mass = found.peaks[kPeakSize * index + 2];
    EXPECT_NEAR(mass, exact, 1.01 * kMassError * exact);
    mass = 0.0f;  // a GPU does not know it
  }
}

Found on_cpu(const Scene& scene) {
  const std::unique_ptr<Device> device = make_cpu_device({1});
  const reference::OwnedMatrix logits = reference::upload(*device, scene.logits, scene.columns);
  device->prepare_selection(kRows, scene.runs);
  device->top_of_rows(logits.matrix, kRows);
  std::vector<float> peaks(kPeakSize * kRows, -1.0f);
  const Selection selection{scene.rows, scene.changes};
  device->begin_selection(logits.matrix, selection, 0, 1, peaks.data());
  device->finish_selection(logits.matrix, selection, 1, peaks.data());
  Found found = unpack(scene, peaks, device->read_selection());
  make_exact(scene, found);
  return found;
}

class CudaSelectionTest : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  TestStream stream_;

  Found on_gpu(const Scene& scene, std::size_t skip = 0) {
    const DeviceRows logits = upload_rows(scene.logits, scene.columns, skip);
    const DeviceMemory tops(kRows * sizeof(Top), "a test"), peaks(kPeakSize * kRows * sizeof(float), "a test");
    std::vector<Top> host_tops(kRows);
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto begin = scene.logits.begin() + static_cast<std::ptrdiff_t>(row * scene.columns);
      host_tops[row].logit = *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(scene.columns));
    }
    check(cudaMemcpy(tops.data(), host_tops.data(), kRows * sizeof(Top), cudaMemcpyHostToDevice), "uploading");
    CudaSelection selection;
    selection.prepare(kRows, scene.runs);
    selection.begin(stream_.launch(), logits.rows, tops.as<Top>(), {scene.rows, scene.changes}, 0, 1, peaks.as<float>());
    selection.finish(stream_.launch(), logits.rows, 1, peaks.as<float>());
    stream_.synchronize();
    EXPECT_EQ(reference::count_different(logits.values(), scene.logits), 0u) << "the logits are not as they were";
    return unpack(scene, from_device<float>(peaks.data(), kPeakSize * kRows), selection.found());
  }
};

TEST_F(CudaSelectionTest, FindsWhatTheCpuDeviceFinds) {
  for (const std::size_t columns : {3, 16, 20, 97, 640, 1030}) {
    for (const std::size_t first_segment : {0, 5, 40}) {
      const Scene of = scene(columns, first_segment);
      const Found expected = on_cpu(of);
      for (const std::size_t skip : {0, 1}) EXPECT_EQ(on_gpu(of, skip), expected) << columns << " ids behind segment " << first_segment;
    }
  }
}

TEST_F(CudaSelectionTest, RunsOfManySegmentsAreAddedUpInParts) {
  const Scene of = scene(1024 * kVocabularySegment);
  ASSERT_EQ(of.runs.size(), 1u);
  EXPECT_EQ(on_gpu(of), on_cpu(of));
}

TEST_F(CudaSelectionTest, FindsTheSameUnderEverySchedule) {
  const Scene of = scene(2 * 8200);
  const Found expected = on_gpu(of);
  for (const simt::Schedule schedule : {simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
    simt::config().schedule = schedule;
    EXPECT_EQ(on_gpu(of), expected);
  }
}

TEST_F(CudaSelectionTest, WritesOnlyItsOwnPeaks) {
  const Scene of = scene(50);
  const DeviceRows logits = upload_rows(of.logits, of.columns);
  const DeviceMemory tops = to_device(std::vector<Top>(kRows, Top{3.0f, 1, true}));
  const DeviceMemory peaks = to_device(std::vector<float>(3 * kPeakSize * kRows, 7.0f));
  CudaSelection selection;
  selection.prepare(kRows, of.runs);
  selection.begin(stream_.launch(), logits.rows, tops.as<Top>(), {of.rows, of.changes}, 1, 3, peaks.as<float>());
  stream_.synchronize();
  const std::vector<float> found = from_device<float>(peaks.data(), 3 * kPeakSize * kRows);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_own = i / (kPeakSize * kRows) == 1;
    if (!is_own || i % kPeakSize == 2) {
      EXPECT_EQ(found[i], 0.0f) << i;
    } else if (i % kPeakSize == 1) {
      EXPECT_EQ(found[i], 3.0f) << i;
    }
  }
}

TEST_F(CudaSelectionTest, MoreRowsThanPreparedForAreRefused) {
  const Scene of = scene(50);
  const DeviceRows logits = upload_rows(of.logits, of.columns);
  const DeviceMemory peaks(kPeakSize * kRows * sizeof(float), "a test");
  CudaSelection selection;
  selection.prepare(kRows - 1, of.runs);
  EXPECT_THROW(selection.begin(stream_.launch(), logits.rows, nullptr, {of.rows, of.changes}, 0, 1, peaks.as<float>()),
               std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device::cuda
