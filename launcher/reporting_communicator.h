#pragma once

#include <memory>

#include "comm/forwarding_communicator.h"
#include "launcher/rank_control.h"

namespace lockstep::launcher {

/// A communicator that shows the positions that it is told to the rank's control thread as well. The rest goes to the one inside.
class ReportingCommunicator final : public comm::ForwardingCommunicator {
 public:
  /// `control` must outlive this object.
  ReportingCommunicator(std::unique_ptr<comm::Communicator> inside, RankControl& control)
      : ForwardingCommunicator(*inside), inside_(std::move(inside)), control_(control) {
    control_.on_abort([this](std::string_view reason) { inside_->abort(reason); });
  }
  ~ReportingCommunicator() override { control_.on_abort({}); }

  void set_position(const comm::Position& position) noexcept override {
    inside_->set_position(position);
    control_.set_position(position);
  }

 private:
  std::unique_ptr<comm::Communicator> inside_;
  RankControl& control_;
};

}  // namespace lockstep::launcher
