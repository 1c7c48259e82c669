// The mma family: products of 16-bit activations with F16, BF16 and block-quantised weights.
#include <gtest/gtest.h>

#include "parallel/reduction_tree.h"
#include "tests/simt/linear_support.h"

namespace lockstep::device::cuda {
namespace {

using namespace testing_support;

class MmaLinearOfType : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { simt::reset(); }
};

/// The product in double precision of what the kernel is to multiply, and the sum of the absolute products.
struct Expected {
  std::vector<double> sums, sizes;  // [roots, tokens, rows]
};

Expected expected_linear(const StoredWeight& w, const std::vector<float>& x, std::size_t tokens, const std::vector<float>& bias) {
  const std::size_t rows = w.spec.rows, columns = w.spec.columns, count = w.spec.num_roots() * tokens * rows;
  const Activation type = activation_for(w.spec.dtype);
  Expected expected{std::vector<double>(count), std::vector<double>(count)};
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<float> values(columns);
    dequantise(w.spec.dtype, std::span(w.row(row), w.row_size()), values);
    for (std::size_t token = 0; token < tokens; ++token) {
      std::size_t k = 0, root = 0;
      for (const Leaf& leaf : w.spec.leaves) {
        const std::size_t at = (root * tokens + token) * rows + row;
        for (; k < leaf.end; ++k) {
          const double product = double{rounded(values[k], type)} * double{rounded(x[token * columns + k], type)};
          expected.sums[at] += product;
          expected.sizes[at] += std::fabs(product);
        }
        if (leaf.ends_root) ++root;
      }
      if (!bias.empty()) expected.sums[token * rows + row] += double{bias[row]};
      if (!bias.empty()) expected.sizes[token * rows + row] += std::fabs(double{bias[row]});
    }
  }
  return expected;
}

/// Every addition of a sum of n products is off by at most 2^-23 of the sizes (tensor cores may truncate); there are n and a few.
void expect_near(const std::vector<float>& out, const Expected& expected, std::size_t columns, const std::string& what) {
  ASSERT_EQ(out.size(), expected.sums.size()) << what;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double bound = static_cast<double>(columns + 8) * 0x1p-23 * expected.sizes[i];
    wrong += std::fabs(double{out[i]} - expected.sums[i]) <= bound ? 0 : 1;  // NaN is wrong, too
  }
  EXPECT_EQ(wrong, 0u) << what;
}

TEST_P(MmaLinearOfType, IsTheProductOfTheRoundedNumbersWithinTheBound) {
  const DType dtype = GetParam();
  std::vector<std::pair<std::size_t, std::size_t>> shapes{{1, 32}, {97, 288}, {40, 1056}};
  if (!is_block_quantised(dtype)) shapes.insert(shapes.end(), {{33, 65}, {5, 8}, {3, 1}});
  const Gpu few(kFewMultiprocessors), many(kManyMultiprocessors);
  for (const auto& [rows, columns] : shapes) {
    for (const std::size_t leaves : {1, 5}) {
      const StoredWeight w = reference::make_weight(dtype, rows, columns, reference::make_leaves(dtype, columns, leaves), 1);
      const auto weight = load_cuda_weight(w.spec, w.reader());
      const std::vector<float> bias = reference::random_floats(rows, 3);
      for (const std::size_t tokens : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130}) {
        if (rows != 97 && tokens != 2 && tokens != 33) continue;  // all of them for one shape
        const std::vector<float> x = reference::random_floats(tokens * columns, 2, 2.0f);
        const Expected expected = expected_linear(w, x, tokens, bias);
        const std::string what = std::to_string(rows) + " x " + std::to_string(columns) + ", " + std::to_string(leaves) + " leaves, " +
                                 std::to_string(tokens) + " tokens";
        const std::vector<float> out = run_linear(few, *weight, x, tokens, bias);
        expect_near(out, expected, columns, what);
        if (tokens > 32) {
          EXPECT_TRUE(same_bytes(run_linear(many, *weight, x, tokens, bias), out)) << what << ": the tile matters";
        }
      }
    }
  }
}

TEST_P(MmaLinearOfType, ARowHasTheSameBytesWhateverTheOtherTokensAre) {
  const DType dtype = GetParam();
  const std::size_t rows = 48, columns = 544, most = 70;
  const Gpu few(kFewMultiprocessors), many(kManyMultiprocessors);
  const std::vector<float> x = reference::random_floats(most * columns, 12, 2.0f);
  for (const std::size_t leaves : {1, 7}) {
    const StoredWeight w = reference::make_weight(dtype, rows, columns, reference::make_leaves(dtype, columns, leaves), 11);
    const auto weight = load_cuda_weight(w.spec, w.reader());
    const std::vector<float> all = run_linear(few, *weight, x, most);
    for (const auto& [first, count] :
         std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {69, 1}, {13, 5}, {30, 16}, {3, 33}, {1, 66}}) {
      const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(first * columns),
                                    x.begin() + static_cast<std::ptrdiff_t>((first + count) * columns));
      for (const Gpu* gpu : {&few, &many}) {
        const std::vector<float> out = run_linear(*gpu, *weight, part, count);
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_TRUE(same_bytes(row_of(out, rows, i), row_of(all, rows, first + i)))
              << leaves << " leaves, token " << first + i << " of " << count;
        }
      }
    }
  }
}

TEST_P(MmaLinearOfType, DoesNotDependOnTheScheduleOfThreads) {
  const DType dtype = GetParam();
  for (const std::size_t leaves : {1, 12}) {  // 3 and 12 slices: one round of the warps of a block, and two
    const StoredWeight w = reference::make_weight(dtype, 40, 384, reference::make_leaves(dtype, 384, leaves), 21);
    for (const std::size_t tokens : {3, 12, 40}) {
      const std::vector<float> x = reference::random_floats(tokens * 384, 22);
      std::vector<float> expected;
      for (const simt::Schedule schedule :
           {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
        simt::config().schedule = schedule;
        simt::config().shuffle_blocks = schedule != simt::Schedule::kForward;
        const Gpu gpu;
        const std::vector<float> out = run_linear(gpu, *load_cuda_weight(w.spec, w.reader()), x, tokens);
        if (expected.empty()) expected = out;
        EXPECT_TRUE(same_bytes(out, expected)) << leaves << " leaves, " << tokens << " tokens, schedule " << static_cast<int>(schedule);
      }
    }
  }
}

/// Columns [begin, end) of a stored weight.
StoredWeight columns_of(const StoredWeight& w, std::size_t begin, std::size_t end, std::vector<Leaf> leaves) {
  StoredWeight part{{w.spec.name, w.spec.dtype, w.spec.rows, end - begin, std::move(leaves)}, {}};
  const std::size_t before = row_bytes(w.spec.dtype, begin);
  for (std::size_t row = 0; row < w.spec.rows; ++row)
    part.bytes.insert(part.bytes.end(), w.row(row) + before, w.row(row) + before + part.row_size());
  return part;
}

TEST_P(MmaLinearOfType, SharesCutAtLeavesAddUpToTheWholeProduct) {
  const DType dtype = GetParam();
  const std::size_t rows = 37, unit = is_block_quantised(dtype) ? 32 : 12, num_leaves = 9;
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < num_leaves; ++i) ends.push_back((ends.empty() ? 0 : ends.back()) + unit * (i == 4 ? 12 : 1 + i % 2));
  const parallel::ReductionTree tree(num_leaves);
  const StoredWeight whole = reference::make_weight(dtype, rows, ends.back(), tree.leaf_program({0, num_leaves}, ends), 31);
  const auto whole_weight = load_cuda_weight(whole.spec, whole.reader());
  const Gpu gpu;
  for (const std::size_t tokens : {2, 35}) {
    const std::vector<float> x = reference::random_floats(tokens * ends.back(), 32);
    const std::vector<float> expected = run_linear(gpu, *whole_weight, x, tokens);
    for (const std::size_t cut : {1, 4, 5, 7}) {
      const std::vector<parallel::Range> shares{{0, cut}, {cut, num_leaves}};
      std::vector<std::vector<float>> roots;
      for (const parallel::Range share : shares) {
        const std::size_t begin = share.begin == 0 ? 0 : ends[share.begin - 1], end = ends[share.end - 1];
        const StoredWeight part = columns_of(whole, begin, end, tree.leaf_program(share, ends));
        std::vector<float> part_x;
        for (std::size_t token = 0; token < tokens; ++token) {
          const auto row = x.begin() + static_cast<std::ptrdiff_t>(token * ends.back());
          part_x.insert(part_x.end(), row + static_cast<std::ptrdiff_t>(begin), row + static_cast<std::ptrdiff_t>(end));
        }
        const std::vector<float> out = run_linear(gpu, *load_cuda_weight(part.spec, part.reader()), part_x, tokens);
        for (std::size_t root = 0; root < part.spec.num_roots(); ++root) roots.push_back(row_of(out, tokens * rows, root));
      }
      for (const comm::TreeSum::Merge& merge : tree.tree_sum(shares).merges) {
        for (std::size_t i = 0; i < tokens * rows; ++i) roots[merge.into][i] += roots[merge.from][i];
      }
      EXPECT_TRUE(same_bytes(roots[0], expected)) << "cut at " << cut << ", " << tokens << " tokens";
    }
  }
}

TEST_P(MmaLinearOfType, NonFiniteActivationsSpoilNoOtherToken) {
  const DType dtype = GetParam();
  const StoredWeight w = reference::make_weight(dtype, 33, 96, reference::make_leaves(dtype, 96, 3), 41);
  const auto weight = load_cuda_weight(w.spec, w.reader());
  const Gpu gpu;
  for (const std::size_t tokens : {3, 40}) {
    std::vector<float> x = reference::random_floats(tokens * 96, 42);
    const std::vector<float> clean = run_linear(gpu, *weight, x, tokens);
    x[96 + 40] = std::nanf("");
    const std::vector<float> out = run_linear(gpu, *weight, x, tokens);
    for (std::size_t token = 0; token < tokens; ++token) {
      if (token == 1) {
        for (const float value : row_of(out, 33, token)) EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_TRUE(same_bytes(row_of(out, 33, token), row_of(clean, 33, token))) << token;
      }
    }
  }
}

// The activations of these tests have NaN between the columns and the stride (make_rows), and so has the leaf's neighbour here.
TEST_P(MmaLinearOfType, ALeafReadsNoColumnOfItsNeighbour) {
  const DType dtype = GetParam();
  const Gpu gpu;
  for (const std::size_t unit : is_block_quantised(dtype) ? std::vector<std::size_t>{32} : std::vector<std::size_t>{9, 24}) {
    const StoredWeight w = reference::make_weight(dtype, 20, 3 * unit, reference::make_leaves(dtype, 3 * unit, 3, true), 43);
    const auto weight = load_cuda_weight(w.spec, w.reader());
    for (const std::size_t tokens : {2, 33}) {
      std::vector<float> x = reference::random_floats(tokens * 3 * unit, 44);
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t k = unit; k < 2 * unit; ++k) x[token * 3 * unit + k] = std::nanf("");
      }
      const std::vector<float> out = run_linear(gpu, *weight, x, tokens);
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / (tokens * 20) == 1) << unit << " columns, " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, MmaLinearOfType, testing::Values(DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1),
                         [](const auto& type) { return std::string(device::info(type.param).name); });

}  // namespace
}  // namespace lockstep::device::cuda
