#pragma once

#include <functional>
#include <vector>

#include "comm/cuda/plugin.h"
#include "device/cpu/isa.h"
#include "engine/session.h"

namespace lockstep::test {

/// How a test runs a model: ranks as threads of this process.
struct RunSetup {
  engine::SessionOptions session;
  int ranks = 1;
  std::size_t threads = 1;  // of each rank
  device::Isa isa = device::Isa::kPortable;
  /// Opens what a rank computes on, in place of the CPU device that `threads` and `isa` describe.
  std::function<comm::CudaRank(comm::Communicator& host)> open_rank;
};

/// Exact arithmetic: weights expanded, KV cache in fp32.
RunSetup exact_setup(const std::filesystem::path& model, int ranks);

/// Opens the model on `setup.ranks` ranks and calls `body` on rank 0 while the others serve. Throws what any rank threw first.
/// The number of ranks that took part is checked, so that a test for several can not pass at one.
void with_session(const RunSetup& setup, const std::function<void(engine::Session&)>& body);

/// Logits of every prompt position: [tokens][vocabulary].
std::vector<std::vector<float>> prompt_logits(engine::Session& session, const std::vector<std::int32_t>& prompt);

/// Greedy continuation of exactly `count` tokens, or fewer that end in one of `end_ids`.
std::vector<std::int32_t> greedy(engine::Session& session, const std::vector<std::int32_t>& prompt, std::uint32_t count,
                                 const std::vector<std::int32_t>& end_ids = {});

}  // namespace lockstep::test
