#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::engine {

/// How serialised plans leave rank 0. An adapter over comm's control channel implements it; with one rank there is nobody to tell.
class PlanSender {
 public:
  virtual ~PlanSender() = default;
  /// Every other rank receives these bytes, in the order of the calls. Throws if one is gone.
  virtual void send(std::span<const std::byte> plan) = 0;
};

/// How they arrive on the other ranks.
class PlanReceiver {
 public:
  virtual ~PlanReceiver() = default;
  /// Waits for the next plan and overwrites `plan`, keeping its capacity. Throws if rank 0 is gone.
  virtual void receive(std::vector<std::byte>& plan) = 0;
};

}  // namespace lockstep::engine
