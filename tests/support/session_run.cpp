#include "tests/support/session_run.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "comm/self.h"
#include "comm/threads.h"
#include "device/cpu/cpu_device.h"

namespace lockstep::test {
namespace {

class FirstError {
 public:
  void take(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

RunSetup exact_setup(const std::filesystem::path& model, int ranks) {
  RunSetup setup;
  setup.session.model = model;
  setup.session.dtype = device::DType::kF32;
  setup.session.kv_cache_bytes = 64u << 20;
  setup.ranks = ranks;
  setup.isa = device::supported_isas().back();
  return setup;
}

void with_session(const RunSetup& setup, const std::function<void(engine::Session&)>& body) {
  comm::CommunicatorOptions options;
  options.deadline = std::chrono::seconds(60);
  auto communicators = comm::make_thread_communicators(setup.ranks, options);
  FirstError first_error;
  std::atomic<int> took_part{0};
  const auto run_rank = [&](comm::Communicator& communicator) {
    try {
      const comm::CudaRank rank = setup.open_rank
                                      ? setup.open_rank(communicator)
                                      : comm::CudaRank{device::make_cpu_device({.num_threads = setup.threads, .isa = setup.isa}), nullptr};
      engine::Session session(setup.session, *rank.device, rank.communicator ? *rank.communicator : communicator);
      took_part += communicator.size() == setup.ranks ? 1 : 0;
      if (communicator.rank() != 0) {
        session.serve();
        return;
      }
      body(session);
      session.stop();
    } catch (const std::exception& error) {
      first_error.take(std::current_exception());
      communicator.abort(error.what());
    }
  };
  std::vector<std::thread> peers;
  for (int rank = 1; rank < setup.ranks; ++rank)
    peers.emplace_back([&, rank] { run_rank(*communicators[static_cast<std::size_t>(rank)]); });
  run_rank(*communicators[0]);
  for (std::thread& peer : peers) peer.join();
  first_error.rethrow();
  if (took_part != setup.ranks)
    throw std::logic_error(std::to_string(took_part) + " of " + std::to_string(setup.ranks) + " ranks took part");
}

std::vector<std::vector<float>> prompt_logits(engine::Session& session, const std::vector<std::int32_t>& prompt) {
  std::vector<std::vector<float>> rows;
  session.forward(prompt, [&](std::size_t position, std::span<const float> logits) {
    if (position != rows.size()) throw std::logic_error("positions out of order");
    rows.emplace_back(logits.begin(), logits.end());
  });
  return rows;
}

std::vector<std::int32_t> greedy(engine::Session& session, const std::vector<std::int32_t>& prompt, std::uint32_t count,
                                 const std::vector<std::int32_t>& end_ids) {
  engine::Request request;
  request.id = 1;
  request.prompt = prompt;
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = end_ids;
  request.sampling.max_tokens = count;
  std::vector<std::int32_t> tokens;
  session.engine().submit(std::move(request), [&](engine::Completion&& done) {
    if (done.choices.at(0).finish_reason == engine::FinishReason::kError) throw std::runtime_error(done.choices[0].error);
    tokens = done.choices[0].tokens;
  });
  while (session.engine().step()) {
  }
  return tokens;
}

}  // namespace lockstep::test
