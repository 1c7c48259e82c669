// A whole model on several ranks (as threads): what users of other engines met, from the field report.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/forwarding_communicator.h"
#include "comm/threads.h"
#include "device/cpu/cpu_device.h"
#include "engine/weights/loader.h"
#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SessionTest : public testing::Test {
 protected:
  fs::path write(device::DType dtype, const test::TinyModel& model = {}) {
    const fs::path path = folder_.path() / "model.gguf";
    test::write_tiny_gguf(path, dtype, model);
    return path;
  }

 private:
  test::TemporaryFolder folder_;
};

// Case 4: pads of a vocabulary that no number of ranks divides must not win where every logit is below zero.
TEST_F(SessionTest, PadsOfTheVocabularyNeverWinAndNeverShow) {
  test::TinyModel model;
  model.vocabulary = 97;
  model.head_of_one_sign = true;
  const fs::path path = write(device::DType::kF32, model);
  std::vector<std::int32_t> expected;
  for (const int ranks : {1, 2, 4, 8}) {  // 7 segments of 16: the eighth rank has no ids at all
    test::with_session(test::exact_setup(path, ranks), [&](engine::Session& session) {
      std::size_t all_negative = 0;
      std::vector<std::int32_t> tokens;
      for (std::int32_t first = 3; first < 40; ++first) {
        const auto logits = test::prompt_logits(session, {first});
        ASSERT_EQ(logits.at(0).size(), 97u);
        const auto best = std::max_element(logits[0].begin(), logits[0].end());
        all_negative += *best < 0 ? 1 : 0;
        tokens.push_back(test::greedy(session, {first}, 1).at(0));
        EXPECT_EQ(tokens.back(), best - logits[0].begin()) << ranks << " ranks";
      }
      EXPECT_GT(all_negative, 5u);
      if (expected.empty()) expected = tokens;
      EXPECT_EQ(tokens, expected) << ranks << " ranks";
    });
  }
}

/// Passes every call on, and keeps what was broadcast: the step plans, which carry each token that was sampled.
class Recorder final : public comm::ForwardingCommunicator {
 public:
  explicit Recorder(std::unique_ptr<comm::Communicator> inner) : ForwardingCommunicator(*inner), inner_(std::move(inner)) {}
  void broadcast(std::span<std::byte> bytes, int root) override {
    inner_->broadcast(bytes, root);
    heard_.insert(heard_.end(), bytes.begin(), bytes.end());
  }
  const std::vector<std::byte>& heard() const { return heard_; }

 private:
  std::unique_ptr<comm::Communicator> inner_;
  std::vector<std::byte> heard_;
};

// Case 7: at temperature 1 every rank computes with the same tokens, because one rank samples and tells.
TEST_F(SessionTest, EveryRankHasTheSameTokenHistory) {
  constexpr int kRanks = 4;
  const test::RunSetup setup = test::exact_setup(write(device::DType::kF32), kRanks);
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (auto& communicator : comm::make_thread_communicators(kRanks))
    recorders.push_back(std::make_unique<Recorder>(std::move(communicator)));
  std::vector<std::int32_t> sampled;
  const auto run = [&](Recorder& communicator) {
    const auto device = device::make_cpu_device({.num_threads = 1});
    engine::Session session(setup.session, *device, communicator);
    if (communicator.rank() != 0) {
      session.serve();
      return;
    }
    engine::Request request{.id = 1, .prompt = {5, 6, 7}, .sampling = {}};
    request.sampling.seed = 99;
    request.sampling.max_tokens = 24;
    request.sampling.ignore_eos = true;
    session.engine().submit(std::move(request), [&](engine::Completion&& done) { sampled = done.choices.at(0).tokens; });
    while (session.engine().step()) {
    }
    session.stop();
  };
  std::vector<std::thread> peers;
  for (int rank = 1; rank < kRanks; ++rank) peers.emplace_back([&, rank] { run(*recorders[static_cast<std::size_t>(rank)]); });
  run(*recorders[0]);
  for (std::thread& peer : peers) peer.join();
  ASSERT_EQ(sampled.size(), 24u);
  EXPECT_GT(std::set<std::int32_t>(sampled.begin(), sampled.end()).size(), 5u);  // it did sample
  EXPECT_GT(recorders[0]->heard().size(), 24u * sizeof(std::int32_t));
  for (const auto& recorder : recorders) {
    EXPECT_EQ(recorder->size(), kRanks);
    EXPECT_EQ(recorder->heard(), recorders[0]->heard()) << "rank " << recorder->rank();
  }
}

// Case 29: a request whose logits are not finite fails by name; the requests beside it do not notice.
TEST_F(SessionTest, NonFiniteLogitsFailThatRequestAlone) {
  test::TinyModel model;
  model.nan_token = 77;
  const fs::path path = write(device::DType::kF32, model);
  for (const int ranks : {1, 3}) {
    test::with_session(test::exact_setup(path, ranks), [&](engine::Session& session) {
      const auto alone = test::greedy(session, {5, 6, 7}, 6);
      std::vector<engine::Choice> choices(3);
      for (std::size_t i = 0; i < choices.size(); ++i) {
        engine::Request request;
        request.id = i;
        request.prompt = i == 1 ? std::vector<std::int32_t>{5, 77, 7} : std::vector<std::int32_t>{5, 6, 7};
        request.sampling.temperature = i == 2 ? 1.0f : 0.0f;
        request.sampling.ignore_eos = true;
        request.sampling.max_tokens = 6;
        session.engine().submit(std::move(request),
                                [&choices](engine::Completion&& done) { choices[done.id] = std::move(done.choices.at(0)); });
      }
      while (session.engine().step()) {
      }
      EXPECT_EQ(choices[0].tokens, alone);
      EXPECT_EQ(choices[1].finish_reason, engine::FinishReason::kError);
      EXPECT_THAT(choices[1].error, HasSubstr("finite"));
      EXPECT_EQ(choices[2].tokens.size(), 6u);
    });
  }
}

// Case 30: together the ranks read hardly more than the file, and each keeps its share.
TEST_F(SessionTest, EachRankReadsAndKeepsItsOwnShare) {
  for (const device::DType dtype : {device::DType::kF16, device::DType::kQ4_1}) {
    const fs::path path = write(dtype);
    for (const std::size_t ranks : {1u, 2u, 3u, 9u}) {
      std::uint64_t read = 0;
      std::size_t kept = 0;
      std::size_t largest = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const engine::OpenedModel model = engine::open_model(path);
        const parallel::RankGraph plan = parallel::plan(engine::graph_of(model, std::nullopt), rank, ranks, device::cpu_activation_for);
        const auto device = device::make_cpu_device({.num_threads = 1});
        const std::uint64_t before = model.weights->bytes_read();
        const std::size_t bytes = engine::load_shard(plan, model.spec, *model.weights, *device).size_bytes();
        read += model.weights->bytes_read() - before;
        kept += bytes;
        largest = std::max(largest, bytes);
      }
      const auto file = fs::file_size(path);
      // On 9 ranks each holds a KV head for one query head alone: three times the k and v rows, and rows are padded to panels of 16 to 64.
      EXPECT_LE(static_cast<double>(read), (ranks <= 3 ? 1.2 : 1.4) * static_cast<double>(file)) << ranks << " ranks";
      EXPECT_GE(static_cast<double>(read), 0.9 * static_cast<double>(file)) << ranks << " ranks";
      EXPECT_LE(static_cast<double>(largest), 1.6 * static_cast<double>(file) / static_cast<double>(ranks)) << ranks << " ranks";
      EXPECT_LE(static_cast<double>(kept), 1.6 * static_cast<double>(file)) << ranks << " ranks";
    }
  }
}

// Cases 20 and 21: the context is paid for by a budget, and what does not fit is told with its arithmetic.
TEST_F(SessionTest, AContextThatDoesNotFitIsToldWithWhatWould) {
  test::TinyModel model;
  model.context = 131072;
  const fs::path path = write(device::DType::kF32, model);
  test::RunSetup setup = test::exact_setup(path, 1);
  setup.session.kv_cache_bytes = 2 * 2 * 96 * 4 * 160;  // 160 tokens: K and V of 2 layers and 3 KV heads of 32, in fp32
  test::with_session(setup, [](engine::Session& session) { EXPECT_EQ(session.engine().limits().max_model_len, 160u); });
  setup.session.max_model_len = 1024;
  try {
    test::with_session(setup, [](engine::Session&) {});
    FAIL() << "1,024 tokens fitted into room for 160";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("1536"));  // bytes a token
    EXPECT_THAT(error.what(), HasSubstr("160"));
  }
}

TEST_F(SessionTest, MoreRanksThanLeavesAreRefusedBeforeWeightsAreRead) {
  const fs::path path = write(device::DType::kQ8_0);
  try {
    test::with_session(test::exact_setup(path, 10), [](engine::Session&) {});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 to 9 ranks"));
  }
}

TEST_F(SessionTest, AFileWithoutAVocabularyIsNamedAndTokenIdsStillWork) {
  const fs::path path = write(device::DType::kF32, {.has_tokenizer = false});
  test::with_session(test::exact_setup(path, 2), [&](engine::Session& session) {
    EXPECT_EQ(test::greedy(session, {7, 8}, 3).size(), 3u);
    try {
      session.tokenizer();
      ADD_FAILURE() << "there is none";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), path.string() + ": has no vocabulary; score of token ids and bench work without one");
    }
  });
}

}  // namespace
}  // namespace lockstep
