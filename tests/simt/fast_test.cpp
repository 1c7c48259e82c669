// --reduction fast: cuBLASLt's products and ncclAllReduce, and only there.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/simt/gpu_session.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

using Rows = std::vector<std::vector<float>>;

class FastReduction : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    simt::reset();
    test::write_tiny_gguf(model_, device::DType::kBF16, {.num_layers = 1});
  }
  void TearDown() override { simt::reset(); }

  /// Logits of a prompt, and the greedy tokens behind it.
  std::pair<Rows, std::vector<std::int32_t>> run(bool fast) {
    test::RunSetup setup = test::exact_setup(model_, GetParam());
    setup.session.dtype.reset();
    std::pair<Rows, std::vector<std::int32_t>> answer;
    test::with_session(test::on_gpus(setup, true, fast), [&](engine::Session& session) {
      answer.first = test::prompt_logits(session, {5, 6, 7, 8, 9, 10, 11});
      answer.second = test::greedy(session, {5, 6, 7}, 6);
    });
    EXPECT_EQ(simt::last_error(), "");
    return answer;
  }

 private:
  test::TemporaryFolder folder_;
  std::filesystem::path model_ = folder_.path() / "tiny.gguf";
};

TEST_P(FastReduction, IsNearTheCanonicalOneAndAloneInItsUseOfTheLibraries) {
  const auto [exact, exact_tokens] = run(false);
  EXPECT_EQ(simt::counters().matmuls, 0u);
  const auto [fast, fast_tokens] = run(true);
  EXPECT_GT(simt::counters().matmuls, 0u);
  EXPECT_EQ(simt::counters().collectives > 0, GetParam() > 1);
  ASSERT_EQ(fast.size(), exact.size());
  float largest = 0, scale = 0;
  for (std::size_t t = 0; t < exact.size(); ++t) {
    for (std::size_t i = 0; i < exact[t].size(); ++i) {
      largest = std::max(largest, std::fabs(fast[t][i] - exact[t][i]));
      scale = std::max(scale, std::fabs(exact[t][i]));
    }
  }
  EXPECT_LE(largest, 0.02f * scale);  // a rounding of an activation may fall the other way
  EXPECT_EQ(fast_tokens.size(), exact_tokens.size());
}

INSTANTIATE_TEST_SUITE_P(Gpus, FastReduction, testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
