#include "device/cuda/uploaded_tables.h"

namespace lockstep::device::cuda {

void UploadedTables::clear() {
  rotaries_.clear();
  step_rotaries_.clear();
  slopes_.clear();
}

RotaryView UploadedTables::rotary(const RotaryTable* table) {
  if (table == nullptr || table->rotary_dim == 0) return {};
  if (table->by_token) return rotary_of_tokens(*table);
  const auto [found, is_new] = rotaries_.try_emplace(table->cosines.data());
  auto& [cosines, sines] = found->second;
  if (is_new) {
    cosines = DeviceMemory(table->cosines.size_bytes(), "the rotary table");
    sines = DeviceMemory(table->sines.size_bytes(), "the rotary table");
    device_.write_floats(table->cosines, cosines.data());
    device_.write_floats(table->sines, sines.data());
  }
  return {cosines.as<float>(), sines.as<float>(), static_cast<std::uint32_t>(table->rotary_dim / 2), 0};
}

RotaryView UploadedTables::rotary_of_tokens(const RotaryTable& table) {
  StepRotary& kept = step_rotaries_[&table];
  if (kept.step != num_steps_) {
    if (kept.cosines.size_bytes() < table.cosines.size_bytes()) {
      device_.synchronize();  // the one that goes may be in use
      kept.cosines = DeviceMemory(table.cosines.size_bytes(), "the rotary table");
      kept.sines = DeviceMemory(table.sines.size_bytes(), "the rotary table");
    }
    device_.write_floats(table.cosines, kept.cosines.data());
    device_.write_floats(table.sines, kept.sines.data());
    kept.step = num_steps_;
  }
  return {kept.cosines.as<float>(), kept.sines.as<float>(), static_cast<std::uint32_t>(table.rotary_dim / 2), 1};
}

const float* UploadedTables::slopes(std::span<const float> slopes) {
  if (slopes.empty()) return nullptr;
  const auto [found, is_new] = slopes_.try_emplace(slopes.data());
  if (is_new) {
    found->second = DeviceMemory(slopes.size_bytes(), "the slopes of attention");
    device_.write_floats(slopes, found->second.data());
  }
  return found->second.as<float>();
}

}  // namespace lockstep::device::cuda
